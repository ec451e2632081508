"""Memory-mapped token shards (their files: `gidd.data.manifest`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gidd.data.manifest import GIVEN, INDEX, ShardRecord
from gidd.data.store import RemoteFile, RemoteRange, join
from gidd.errors import DataError

_FIX = "Restore the file from where it was copied, or run `gidd data prepare` again."

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Entries:
    """The integers of a file, memory-mapped.

    Files are mapped on access, and the most recently used maps stay open: the number of open files
    is limited, and worker processes are sent the name.
    """

    name: str
    dtype: np.dtype[Any]
    length: int
    version: tuple[int, ...]
    """Which file had the name when it was opened: another one may have replaced it since."""
    first: int = 0
    """Entries of the file before these."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Array:
        mapped = _map(self.name, self.dtype, self.version)
        return mapped[self.first : self.first + self.length][part]

    def read(self, start: int, end: int) -> _Entries:
        """Return a part, which the system begins to read as a whole."""
        if hasattr(os, "posix_fadvise"):
            with open(self.name, "rb") as file:
                at = (self.first + start) * self.dtype.itemsize
                size = (end - start) * self.dtype.itemsize
                os.posix_fadvise(file.fileno(), at, size, os.POSIX_FADV_WILLNEED)
        return replace(self, first=self.first + start, length=end - start)


@lru_cache(maxsize=256)
def _map(name: str, dtype: np.dtype[Any], _version: tuple[int, ...]) -> Array:
    if not Path(name).stat().st_size:
        return np.zeros(0, dtype=dtype)
    # slices of np.memmap are several times slower
    return np.memmap(name, dtype=dtype, mode="r").view(np.ndarray)


Sliceable = Array | _Entries | RemoteFile | RemoteRange
"""Integers with a length and slices: in memory, memory-mapped or remote."""


@dataclass(frozen=True, eq=False)
class TokenShard:
    """Concatenated tokens of the documents of one file."""

    file: str
    tokens: Sliceable
    ends: Sliceable
    """End of each document: one past its last token."""
    given: Sliceable | None = None
    """1 for each token of the condition of a chat; None if there is no condition."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ends)

    def bounds(self, document: int) -> tuple[int, int]:
        """Return start and end of a document in `tokens`."""
        ends = self.ends[max(0, document - 1) : document + 1]
        start, stop = (0, int(ends[0])) if document == 0 else (int(ends[0]), int(ends[1]))
        if not 0 <= start <= stop <= len(self.tokens):
            raise DataError(
                f"{self.file}: document {document} has tokens {start} to {stop} of "
                f"{len(self.tokens)}: the index is damaged. {_FIX}"
            )
        return start, stop

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of tokens of every document."""
        sizes = np.diff(self.ends[:].astype(np.int64), prepend=0)
        if (sizes < 0).any():
            raise DataError(f"{self.file}: ends of documents decrease: damaged index. {_FIX}")
        return sizes


@lru_cache(maxsize=1 << 13)
def read_block(shard: TokenShard, first: int, end: int) -> TokenShard:
    """Return documents `first` to `end` of a shard: one read of the index, one of the tokens."""
    ends = shard.ends[max(0, first - 1) : end].astype(np.int64)
    start, ends = (int(ends[0]), ends[1:]) if first else (0, ends)
    stop = int(ends[-1])
    if not 0 <= start <= stop <= len(shard.tokens) or (np.diff(ends, prepend=start) < 0).any():
        raise DataError(
            f"{shard.file}: documents {first} to {end} have tokens {start} to {stop} of "
            f"{len(shard.tokens)}, or their ends decrease: the index is damaged. {_FIX}"
        )
    given = None if shard.given is None else _part(shard.given, start, stop)
    return TokenShard(shard.file, _part(shard.tokens, start, stop), ends - start, given)


def _part(entries: Sliceable, start: int, end: int) -> Sliceable:
    has_parts = isinstance(entries, _Entries | RemoteFile)
    return entries.read(start, end) if has_parts else entries[start:end]


def invalid_tokens(place: str, vocab_size: int) -> DataError:
    """Return the error for token ids that are not in the vocabulary."""
    return DataError(
        f"{place} has a token id outside the vocabulary of size {vocab_size}. The shard is damaged "
        "or of another tokenizer: run `gidd data verify`."
    )


class ShardSet:
    """The documents of several shards as one list."""

    def __init__(self, shards: Sequence[TokenShard]) -> None:
        if not sum(map(len, shards)):
            raise DataError(f"there is no document in the {len(shards)} shards. {_FIX}")
        self.shards = tuple(shards)
        self._first = np.cumsum([0, *map(len, shards)])
        self.has_given = any(shard.given is not None for shard in shards)
        """Whether documents have a condition."""

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._first[-1])

    def locate(self, document: int) -> tuple[TokenShard, int]:
        """Return the shard of a document and its index in that shard."""
        index = int(np.searchsorted(self._first, document, side="right")) - 1
        return self.shards[index], document - int(self._first[index])


def open_shard(
    file: str | Path, dtype: type[np.unsignedinteger[Any]] = np.uint16, has_given: bool = False
) -> TokenShard:
    """Open a shard by its token file `NAME.ds`.

    `dtype` is the type of its tokens, from the manifest; `has_given`: whether it has a condition.
    """
    name = str(file)
    given = _open(name + GIVEN, np.uint8) if has_given else None
    shard = TokenShard(name, _open(name, dtype), _open(name + INDEX, np.uint64), given)
    if not len(shard):
        raise DataError(f"{name} has no documents. {_FIX}")
    last = int(shard.ends[len(shard) - 1 :][0])
    if last != len(shard.tokens):
        raise DataError(
            f"{name} has {len(shard.tokens)} tokens, but its index ends at {last}: one of the "
            f"files is truncated or of another shard. {_FIX}"
        )
    return shard


def remote_shard(folder: str, record: ShardRecord, dtype: str) -> TokenShard:
    """Return a shard in object storage, whose sizes are those of the manifest."""
    kinds = {"": np.dtype(dtype), INDEX: np.dtype(np.uint64), GIVEN: np.dtype(np.uint8)}
    files = [
        RemoteFile(join(folder, name), digest, kind, size // kind.itemsize)
        for name, (size, digest) in record.files(dtype).items()
        for kind in [kinds[name.removeprefix(record.file)]]
    ]
    return TokenShard(files[0].url, *files)


def _open(name: str, kind: type[np.unsignedinteger[Any]]) -> _Entries:
    if not Path(name).is_file():
        raise DataError(f"{name} does not exist. {_FIX}")
    dtype, stat = np.dtype(kind), Path(name).stat()
    size, version = stat.st_size, (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
    if size % dtype.itemsize:
        raise DataError(f"{name} is truncated: {size} bytes do not fit its {dtype} entries. {_FIX}")
    return _Entries(name, dtype, size // dtype.itemsize, version)
