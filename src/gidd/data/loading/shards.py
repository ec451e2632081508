"""Tokens on disk: memory-mapped shards of three formats, read in place.

| files | what they are |
| --- | --- |
| `NAME.ds`, `NAME.ds.index` | datatrove's store: tokens, and where each document ends |
| `NAME.bin`, `NAME.idx` | Megatron's store: tokens, and sizes and places of sequences |
| `NAME.npy` | one array of tokens: one long document |

Opening a shard reads a few hundred bytes, however many documents it has. A shard that is not a
local file (any `fsspec` address) is read by byte ranges.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from gidd.common.optional import optional_package
from gidd.errors import DataError

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {4: np.int32, 5: np.int64, 8: np.uint16}
_AGAIN = "Restore the file from where it was copied, or run `gidd data prepare` again."

Array = NDArray[Any]


Sliceable: TypeAlias = "Array | _EvenEnds | _Mapped | _Remote"
"""Numbers that can be counted and cut: in memory, computed, mapped or far away."""


@final
@dataclass(frozen=True, eq=False)
class TokenShard:
    """Tokens of many documents in one file, one document after another."""

    file: str
    tokens: Sliceable
    ends: Sliceable
    """One past the last token of each document."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ends)

    def bounds(self, document: int) -> tuple[int, int]:
        """First token of a document and one past its last."""
        ends = self.ends[max(0, document - 1) : document + 1]
        start, stop = (0, int(ends[0])) if document == 0 else (int(ends[0]), int(ends[1]))
        if not start <= stop <= len(self.tokens):
            raise DataError(
                f"{self.file}: document {document} lies at tokens {start} to {stop} of "
                f"{len(self.tokens)}: its index is damaged. {_AGAIN}"
            )
        return start, stop


@final
class ShardSet:
    """Shards as one long list of documents."""

    def __init__(self, shards: Sequence[TokenShard]) -> None:
        if not sum(map(len, shards)):
            raise DataError(f"there is no document in {len(shards)} shards. {_AGAIN}")
        self.shards = tuple(shards)
        self._first = np.cumsum([0, *map(len, shards)])

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._first[-1])

    def locate(self, document: int) -> tuple[TokenShard, int]:
        """The shard of a document and its number there."""
        number = int(np.searchsorted(self._first, document, side="right")) - 1
        return self.shards[number], document - int(self._first[number])


def packed(shards: ShardSet, length: int) -> ShardSet:
    """The same tokens cut into windows of `length`, document after document, nothing padded.

    Only the last window of a shard may be shorter. Where documents meet, their end-of-text token
    stands between them.
    """
    return ShardSet(
        [
            TokenShard(shard.file, shard.tokens, _EvenEnds(len(shard.tokens), length))
            for shard in shards.shards
        ]
    )


@final
class _EvenEnds:
    """length, 2 length, ... and the end: computed, not stored."""

    def __init__(self, total: int, length: int) -> None:
        self._total, self._length = total, length

    def __len__(self) -> int:
        return -(-self._total // self._length)

    def __getitem__(self, part: slice) -> Array:
        windows = np.arange(*part.indices(len(self)), dtype=np.int64)
        return np.minimum((windows + 1) * self._length, self._total)


def open_shard(file: str | Path, dtype: type[np.unsignedinteger[Any]] = np.uint16) -> TokenShard:
    """A shard of any of the three formats, by the ending of its name.

    Args:
        file: The token file; its index is found beside it. A local path or an fsspec address.
        dtype: Type of the tokens of a `.ds` file, which does not say; the manifest does.
    """
    name = str(file)
    if name.endswith(".ds"):
        ends = _entries(name + ".index", np.uint64)
        return _checked(TokenShard(name, _entries(name, dtype), ends))
    if name.endswith(".bin"):
        return _checked(_megatron(name))
    if name.endswith(".npy"):
        tokens = _load_npy(name)
        return TokenShard(name, tokens, np.array([len(tokens)], dtype=np.uint64))
    raise DataError(
        f"{name}: a token file must end in .ds, .bin or .npy. "
        "Turn other formats into shards with `gidd data prepare`."
    )


def _checked(shard: TokenShard) -> TokenShard:
    """What can be seen without reading the documents: the last one ends where the tokens do."""
    documents = len(shard)
    if not documents:
        raise DataError(f"{shard.file} holds no document. {_AGAIN}")
    last = int(shard.ends[documents - 1 : documents][0])
    if last != len(shard.tokens):
        raise DataError(
            f"{shard.file} holds {len(shard.tokens)} tokens, but its index ends at {last}: one of "
            f"the two was cut short or is of another shard. {_AGAIN}"
        )
    return shard


def _megatron(name: str) -> TokenShard:
    """Megatron's index: a header, sizes [int32] and byte places [int64] of all sequences."""
    index = name.removesuffix(".bin") + ".idx"
    header = bytes(_entries(index, np.uint8)[:34])
    if len(header) < 34 or header[:9] != _MEGATRON_MAGIC:
        raise DataError(f"{index} is not a Megatron index. {_AGAIN}")
    version, code, num_sequences, _ = struct.unpack("<QBQQ", header[9:])
    if version != 1 or code not in _MEGATRON_TYPES:
        raise DataError(
            f"{index}: version 1 with tokens of type {sorted(_MEGATRON_TYPES)} (int32, int64, "
            f"uint16) can be read, got version {version}, type {code}. Write it with those."
        )
    sizes = _entries(index, np.int32, skip=34, count=num_sequences)
    return TokenShard(
        name, _entries(name, _MEGATRON_TYPES[code]), np.cumsum(sizes[:], dtype=np.int64)
    )


def _load_npy(name: str) -> Sliceable:
    try:
        tokens: Array = np.load(_existing(name), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{name} is not an array that can be mapped: {error}. {_AGAIN}") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
        raise DataError(
            f"{name} must hold one row of token ids, got {tokens.dtype} of shape {tokens.shape}. "
            "Save the ids as a one-dimensional array of integers."
        )
    return tokens


def _entries(name: str, dtype: Any, skip: int = 0, count: int | None = None) -> Sliceable:
    """Entries of a file from byte `skip` on: mapped if local, read by ranges if not."""
    if "://" in name:
        return _Remote(name, np.dtype(dtype), skip, count)
    return _Mapped(name, np.dtype(dtype), skip, count)


@final
class _Mapped:
    """A local file, mapped when it is read and for as long as it is among the last ones read.

    A map holds an open file, of which a process may have a thousand; a corpus may have more shards.
    Nothing mapped is sent to worker processes, only the name.
    """

    def __init__(self, name: str, dtype: np.dtype[Any], skip: int, count: int | None) -> None:
        size = _existing(name).stat().st_size - skip
        _require_whole(name, size, dtype, count)
        self._length = size // dtype.itemsize if count is None else count
        self._place = (name, dtype, skip, self._length)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Array:
        return _map(*self._place)[part]


@lru_cache(maxsize=256)
def _map(name: str, dtype: np.dtype[Any], skip: int, length: int) -> Array:
    if not length:
        return np.zeros(0, dtype=dtype)
    mapped = np.memmap(_existing(name), dtype=dtype, mode="r", offset=skip, shape=(length,))
    return mapped.view(np.ndarray)  # the subclass makes every slice several times slower


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise DataError(f"{path} does not exist. {_AGAIN}")
    return path


def _require_whole(name: str, size: int, dtype: np.dtype[Any], count: int | None) -> None:
    if size % dtype.itemsize if count is None else size < count * dtype.itemsize:
        raise DataError(
            f"{name} has {size} bytes, which is not a whole number of {dtype} entries: it was cut "
            f"short. {_AGAIN}"
        )


@final
class _Remote:
    """A file behind an fsspec address, read a range of bytes at a time."""

    def __init__(self, address: str, dtype: np.dtype[Any], skip: int, count: int | None) -> None:
        fsspec = optional_package("fsspec", "data")
        self._address, self._dtype, self._skip = address, dtype, skip
        try:
            self._system, self._path = fsspec.core.url_to_fs(address)
            size = int(self._system.size(self._path)) - skip
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{address} cannot be opened: {error}. Check the address.") from error
        _require_whole(address, size, dtype, count)
        self._length = size // dtype.itemsize if count is None else count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(self._length)
        first, last = (self._skip + at * self._dtype.itemsize for at in (start, stop))
        return np.frombuffer(self._system.cat_file(self._path, first, last), dtype=self._dtype)
