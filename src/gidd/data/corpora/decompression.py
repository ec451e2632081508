"""Decompression with bounded output, so that a small file cannot fill memory or take hours."""

from __future__ import annotations

from gzip import GzipFile
from io import BufferedReader, RawIOBase
from typing import Any, final

from gidd.common.limits import COMPRESSION_RATIO
from gidd.common.optional import optional_package
from gidd.errors import DataError

_ALLOWANCE = 8 << 20
"""Bytes that a file may expand to at any ratio: short files can be very regular."""

_BLOCK = 1 << 16


def most_bytes(compressed: int) -> int:
    """Return how many bytes a number of compressed bytes may expand to."""
    return COMPRESSION_RATIO.value * compressed + _ALLOWANCE


def require_ratio(num_bytes: int, compressed: int, place: str) -> None:
    """Raise a `DataError` if compressed bytes expand to too many."""
    if num_bytes > most_bytes(compressed):
        raise DataError(
            f"{place}: {compressed:,} compressed bytes must expand to at most "
            f"{COMPRESSION_RATIO.value} times as many (plus {_ALLOWANCE:,}), got {num_bytes:,}. If "
            "you trust the file, write it again without compression, or raise the limit: "
            f"{COMPRESSION_RATIO.variable}=N."
        )


def decompress(file: Any, name: str) -> BufferedReader:
    """Return the contents of a file, decompressed in small blocks; `name` gives the format."""
    compressed = _CountedFile(file)
    if name.endswith(".gz"):
        return BufferedReader(_BoundedFile(GzipFile(fileobj=compressed), compressed, name), _BLOCK)
    arrow = optional_package("pyarrow", "data")
    stream = arrow.CompressedInputStream(compressed, "zstd")  # reads 64 KiB at a time
    return BufferedReader(_BoundedFile(stream, compressed, name), _BLOCK)


@final
class _CountedFile(RawIOBase):
    """A file that counts the bytes read from it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._file.read(size)
        self.num_bytes += len(data)
        return data


@final
class _BoundedFile(RawIOBase):
    """Decompressed bytes, as long as their number is in proportion to the compressed ones."""

    def __init__(self, stream: Any, compressed: _CountedFile, name: str) -> None:
        self._stream, self._compressed, self._name = stream, compressed, name
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        read: int = self._stream.readinto(buffer)
        self._num_bytes += read
        require_ratio(self._num_bytes, self._compressed.num_bytes, self._name)
        return read
