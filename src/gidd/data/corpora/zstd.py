"""Zstandard files as a stream of bytes.

The reader of the `zstandard` package ends without a word where a file was cut short, and after the
first of several frames; this one does neither.
"""

from __future__ import annotations

import io
from typing import Any, final

from gidd.common.optional import optional_package

_CHUNK = 1 << 18


@final
class ZstdReader(io.RawIOBase):
    """The decompressed bytes of all frames of an open file."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._library = optional_package("zstandard", "data").ZstdDecompressor()
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of the buffer; 0 at the end."""
        while not self._output:
            self._input = self._input or self._file.read(_CHUNK)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the file ends in the middle of a frame")
                return 0
            self._frame = self._frame or self._library.decompressobj()
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count
