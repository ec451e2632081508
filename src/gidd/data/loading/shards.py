"""Memory-mapped token shards; remote ones (any `fsspec` URL) are read by byte ranges.

Formats: `NAME.ds` with `NAME.ds.index` of datatrove (tokens; the end of each document), `NAME.bin`
with `NAME.idx` of Megatron (tokens; sizes and offsets of sequences), and `NAME.npy` (one document).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gidd.common.files import explain_damage
from gidd.common.optional import optional_package
from gidd.data.corpora.remote import wrap_errors
from gidd.errors import DataError

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {4: np.int32, 5: np.int64, 8: np.uint16}
_CHECK_URL = "Check the URL and the connection."
_FIX = "Restore the file from where it was copied, or run `gidd data prepare` again."

Array = NDArray[Any]
Sliceable: TypeAlias = "Array | _Entries"
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
        number = int(np.searchsorted(self._first, document, side="right")) - 1
        return self.shards[number], document - int(self._first[number])


def open_shard(
    file: str | Path,
    dtype: type[np.unsignedinteger[Any]] = np.uint16,
    has_given: bool = False,
) -> TokenShard:
    """Open a shard by its token file, a local path or an fsspec URL; the ending gives the format.

    `dtype` is the type of the tokens of a `.ds` file, from the manifest; `has_given` says whether
    it has a condition.
    """
    name = str(file)
    if name.endswith(".npy"):
        tokens = _load_npy(name)
        return TokenShard(name, tokens, np.array([len(tokens)], dtype=np.uint64))
    if name.endswith(".bin"):
        shard = _megatron(name)
    elif name.endswith(".ds"):
        given = _open(name + ".given", np.uint8) if has_given else None
        shard = TokenShard(name, _open(name, dtype), _open(name + ".index", np.uint64), given)
    else:
        raise DataError(f"{name}: a token file must end in .ds, .bin or .npy.")
    if not len(shard):
        raise DataError(f"{shard.file} has no documents. {_FIX}")
    last = int(shard.ends[len(shard) - 1 :][0])
    if last != len(shard.tokens):
        raise DataError(
            f"{shard.file} has {len(shard.tokens)} tokens, but its index ends at {last}: one of "
            f"the files is truncated or of another shard. {_FIX}"
        )
    return shard


def _megatron(name: str) -> TokenShard:
    """Read Megatron's index: a header, sizes [int32] and byte offsets [int64] of sequences."""
    index = name.removesuffix(".bin") + ".idx"
    header = bytes(_open(index, np.uint8)[:34])
    if len(header) < 34 or header[:9] != _MEGATRON_MAGIC:
        raise DataError(f"{index} is not a Megatron index. {_FIX}")
    version, code, num_sequences, _ = struct.unpack("<QBQQ", header[9:])
    if version != 1 or code not in _MEGATRON_TYPES:
        raise DataError(
            f"{index} must have version 1 and token type 4, 5 or 8 (int32, int64, uint16), got "
            f"version {version}, type {code}."
        )
    sizes = _open(index, np.int32, skip=34, count=num_sequences)[:]
    if (sizes < 0).any():
        raise DataError(f"{index}: sizes of sequences must not be negative. {_FIX}")
    return TokenShard(name, _open(name, _MEGATRON_TYPES[code]), np.cumsum(sizes, dtype=np.int64))


def _load_npy(name: str) -> Sliceable:
    path = _existing(name)
    with explain_damage(name, _FIX, DataError):  # not np.load, which also opens archives
        tokens: Array = np.lib.format.open_memmap(path, mode="r")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
        raise DataError(
            f"{name} must be a one-dimensional array of integers, got {str(tokens.dtype)[:80]} of "
            f"shape {tokens.shape}."
        )
    return tokens


def _open(name: str, dtype: Any, skip: int = 0, count: int | None = None) -> _Entries:
    """Return the entries of a file or fsspec URL from byte `skip` on; by default all."""
    dtype, size = np.dtype(dtype), _size(name) - skip
    if size % dtype.itemsize if count is None else size < count * dtype.itemsize:
        raise DataError(f"{name} is truncated: {size} bytes do not fit its {dtype} entries. {_FIX}")
    return _Entries(name, dtype, skip, size // dtype.itemsize if count is None else count)


def _size(name: str) -> int:
    if "://" not in name:
        return _existing(name).stat().st_size
    with wrap_errors(name, _CHECK_URL):
        system, path = optional_package("fsspec", "data").core.url_to_fs(name)
        return int(system.size(path))


@dataclass(frozen=True, eq=False)
class _Entries:
    """Integers of a file from byte `skip` on: memory-mapped, or read by byte ranges for a URL.

    Files are mapped on access, and the most recently used maps stay open: the number of open files
    is limited, and worker processes are sent the name.
    """

    name: str
    dtype: np.dtype[Any]
    skip: int
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Array:
        if "://" not in self.name:
            return _map(self.name, self.dtype, self.skip, self.length)[part]
        start, stop, _ = part.indices(self.length)
        first, last = (self.skip + at * self.dtype.itemsize for at in (start, stop))
        with wrap_errors(self.name, _CHECK_URL):
            system, path = optional_package("fsspec", "data").core.url_to_fs(self.name)
            data: bytes = system.cat_file(path, first, last) if first < last else b""
            if len(data) != max(0, last - first):
                raise OSError(f"{len(data)} bytes in place of {last - first}")
            return np.frombuffer(data, dtype=self.dtype)


@lru_cache(maxsize=256)
def _map(name: str, dtype: np.dtype[Any], skip: int, length: int) -> Array:
    if not length:
        return np.zeros(0, dtype=dtype)
    mapped = np.memmap(_existing(name), dtype=dtype, mode="r", offset=skip, shape=(length,))
    return mapped.view(np.ndarray)  # slices of np.memmap are several times slower


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise DataError(f"{path} does not exist. {_FIX}")
    return path
