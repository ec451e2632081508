"""Order of an epoch: a pure function of (seed, epoch, index), with nothing to store or resume.

Full shuffle: any document may follow any other, so each sample is a read at a random place. Blocks:
an epoch is a permutation of blocks of consecutive documents, and of the samples inside windows of
these blocks, so that storage is read in blocks. The samples of a step are divided into lanes, which
read different windows: so do ranks, whatever their number.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gidd.data.loading.shards import Array, ShardSet, TokenShard, read_block
from gidd.diffusion.randomness import Stream, philox
from gidd.errors import ConfigError

BLOCK_BYTES = 2 << 20
"""Tokens that are read at once: consecutive documents of a shard, together of about this size."""
LANE_SAMPLES = 8
"""Consecutive samples of a step that read the same window."""
WINDOW_BLOCKS = 16
"""Least number of blocks of a window: two for each sample of a lane."""
OPEN_BLOCKS = 256
"""Least number of blocks of the windows of all lanes together; with few lanes, each has more."""

Shuffle = Literal["full", "blocks", "none"]
_ROUNDS = 8
_LARGEST = 1 << 62
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
_CHUNK = 1 << 14  # windows whose sizes are computed at once


@dataclass(frozen=True)
class Pace:
    """How many samples of a source a step has: a number that may change at some steps."""

    changes: tuple[tuple[int, int], ...]
    """Steps, the first one 0, and the number of samples of each step from there on."""

    def samples(self, step: int) -> int:
        """Return the number of samples of a step."""
        return next(count for first, count in reversed(self.changes) if first <= step)

    def index(self, step: int) -> int:
        """Return the index of the first sample of a step: how many the steps before it have."""
        ends = [first for first, _ in self.changes[1:]] + [step]
        parts = zip(self.changes, ends, strict=True)
        return sum(count * max(0, min(end, step) - first) for (first, count), end in parts)

    def samples_at(self, index: int) -> int:
        """Return the number of samples of the step that has the sample of an index."""
        counts = [count for first, count in self.changes if self.index(first) <= index and count]
        return counts[-1]


class DocumentOrder:
    """Documents, or rows of packed documents, in the order of the files or fully shuffled."""

    def __init__(
        self, shards: ShardSet, seed: int, packed_length: int | None, *, shuffle: bool
    ) -> None:
        self.locate, self._seed, self._shuffle = shards.locate, seed, shuffle
        self._rows = None
        if packed_length is not None:
            sizes = np.concatenate([shard.sizes() for shard in shards.shards])
            self._rows = packed_rows(sizes, packed_length)
        self.size = len(shards) if self._rows is None else len(self._rows) - 1
        """Number of samples of an epoch."""

    def documents(self, index: Array) -> tuple[Array, Array]:
        """Return the first document of each sample, and one past its last."""
        epochs, rows = np.divmod(index, self.size)
        if self._shuffle:
            for epoch in np.unique(epochs):  # a step may contain the end of an epoch
                mine = epochs == epoch
                rows[mine] = shuffled(rows[mine], self.size, self._seed, int(epoch))
        return (rows, rows + 1) if self._rows is None else (self._rows[rows], self._rows[rows + 1])


class BlockOrder:
    """Blocks of consecutive documents, shuffled, and their samples, shuffled inside windows.

    The manifest's counts determine the blocks; the ends of documents are read with their block.
    Only packing reads them all at the start, one shard at a time.
    """

    def __init__(
        self,
        shards: ShardSet,
        seed: int,
        packed_length: int | None,
        *,
        block_bytes: int,
        pace: Pace,
    ) -> None:
        self.shards, self.seed, self.pace, self.packed_length = shards, seed, pace, packed_length
        self._documents = np.array([len(shard) for shard in shards.shards])
        sizes = [len(shard.tokens) * shard.tokens.dtype.itemsize for shard in shards.shards]
        self._blocks = np.clip(-(-np.array(sizes) // block_bytes), 1, self._documents)
        self._first_document = np.concatenate([[0], np.cumsum(self._documents)])
        self._first_block = np.concatenate([[0], np.cumsum(self._blocks)])
        self.num_blocks = int(self._first_block[-1])
        self._rows = None if packed_length is None else self._count_rows(packed_length)
        self.size = len(shards) if self._rows is None else int(self._rows.sum())
        """Number of samples of an epoch."""

    def bounds(self, blocks: Array) -> tuple[Array, Array]:
        """Return the first document of each block, and one past its last."""
        shard = np.searchsorted(self._first_block, blocks, side="right") - 1
        index, documents = blocks - self._first_block[shard], self._documents[shard]
        first, count = self._first_document[shard], self._blocks[shard]
        return first + documents * index // count, first + documents * (index + 1) // count

    def num_samples(self, blocks: Array) -> Array:
        """Return the number of samples of each block."""
        if self._rows is not None:
            return self._rows[blocks]
        first, end = self.bounds(blocks)
        return end - first

    def window_blocks(self, epoch: int) -> int:
        """Return the number of blocks of a window."""
        lanes = -(-self.pace.samples_at(epoch * self.size) // LANE_SAMPLES)
        return max(WINDOW_BLOCKS, -(-OPEN_BLOCKS // lanes))

    def documents(self, index: Array) -> tuple[Array, Array]:
        """Return the first document of each sample, and one past its last."""
        blocks, rows = self.rows(index)
        first, _ = self.bounds(blocks)
        if self.packed_length is None:
            return first + rows, first + rows + 1
        packed = (_packed_block(self, block) for block in blocks.tolist())
        bounds = [rows[row : row + 2] for rows, row in zip(packed, rows, strict=True)]
        return first + [start for start, _ in bounds], first + [end for _, end in bounds]

    def rows(self, index: Array) -> tuple[Array, Array]:
        """Return the block of each sample, and its number in that block."""
        blocks, rows = np.empty_like(index), np.empty_like(index)
        for mine, place, of_window, address in self.windows(index):
            samples = self.num_samples(of_window)
            ends = np.cumsum(samples)
            place = shuffled(place, int(ends[-1]), self.seed, address, Stream.WINDOW)
            position = np.searchsorted(ends, place, side="right")
            blocks[mine] = of_window[position]
            rows[mine] = place - (ends - samples)[position]
        return blocks, rows

    def windows(self, index: Array) -> Generator[tuple[Array, Array, Array, int]]:
        """Yield each window: its samples, their places in it, its blocks, and its address."""
        epochs, places = np.divmod(index, self.size)
        for epoch in np.unique(epochs).tolist():  # a step may contain the end of an epoch
            place = in_lanes(places, self.size, self.pace.samples_at(epoch * self.size))
            ends, width = _window_ends(self, epoch), self.window_blocks(epoch)
            windows = np.where(epochs == epoch, np.searchsorted(ends, place, side="right"), -1)
            for window in set(windows.tolist()) - {-1}:
                mine, start = windows == window, ends[window - 1] if window else 0
                numbers = np.arange(window * width, min((window + 1) * width, self.num_blocks))
                blocks = shuffled(numbers, self.num_blocks, self.seed, epoch)
                yield mine, place[mine] - start, blocks, epoch << 32 | window

    def locate(self, document: int) -> tuple[TokenShard, int]:
        """Return the tokens of the block of a document, and its index in them."""
        shard, index = self.shards.locate(document)
        shard_index = np.searchsorted(self._first_document, document, side="right") - 1
        documents, count = len(shard), int(self._blocks[shard_index])
        block = ((index + 1) * count - 1) // documents
        first, end = (documents * at // count for at in (block, block + 1))
        return read_block(shard, first, end), index - first

    def read(self, block: int) -> TokenShard:
        """Return the tokens of a block."""
        first, _ = self.bounds(np.array(block))
        return self.locate(int(first))[0]

    def _count_rows(self, length: int) -> NDArray[np.int32]:
        """Return the number of packed rows of each block: rows end with their block."""
        counts: list[Array] = []
        for index, shard in enumerate(self.shards.shards):
            blocks = np.arange(self._first_block[index], self._first_block[index + 1])
            row, end = (bound - self._first_document[index] for bound in self.bounds(blocks))
            following, count = _next_rows(shard.sizes(), length), np.zeros(len(row), np.int32)
            while (is_inside := row < end).any():
                count += is_inside
                row = np.where(is_inside, following[np.minimum(row, len(following) - 1)], row)
            counts.append(count)
        return np.concatenate(counts)


@lru_cache(maxsize=8)
def _window_ends(order: BlockOrder, epoch: int) -> NDArray[np.int64]:
    """Return the end of each window, in samples of the epoch."""
    width, sums = order.window_blocks(epoch), list[Array]()
    for start in range(0, order.num_blocks, width * _CHUNK):
        place = np.arange(start, min(start + width * _CHUNK, order.num_blocks))
        samples = order.num_samples(shuffled(place, order.num_blocks, order.seed, epoch))
        sums.append(np.add.reduceat(samples, np.arange(0, len(samples), width)))
    return np.cumsum(np.concatenate(sums), dtype=np.int64)


@lru_cache(maxsize=1 << 13)
def _packed_block(order: BlockOrder, block: int) -> NDArray[np.int64]:
    assert order.packed_length is not None
    return packed_rows(order.read(block).sizes(), order.packed_length)


def in_lanes(place: Array, size: int, width: int) -> Array:
    """Return where the samples of an epoch are in its blocks; a permutation of 0 .. size - 1.

    Steps of `width` samples are divided into lanes of `LANE_SAMPLES`, each a range of the blocks:
    a lane reads on where it stopped a step before. Samples after the last full step stay.
    """
    steps = size // width
    step, column = np.divmod(place, width)
    first = column - column % LANE_SAMPLES
    samples = np.minimum(LANE_SAMPLES, width - first)  # the last lane may have fewer
    return np.where(step < steps, first * steps + step * samples + column - first, place)


def packed_rows(sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the first document of each packed row, and at the end the number of documents.

    A row has consecutive documents of at most `length` tokens together, or one longer document.
    """
    following, rows = _next_rows(sizes, length), [0]
    while rows[-1] < len(sizes):
        rows.append(following.item(rows[-1]))
    return np.array(rows)


def _next_rows(sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the first document that no longer fits, for rows that start at each document."""
    ends = np.cumsum(sizes)
    following = np.searchsorted(ends, ends - sizes + length, side="right")
    return np.maximum(following, np.arange(1, len(ends) + 1))


def shuffled(
    place: NDArray[np.int64], size: int, seed: int, epoch: int, stream: Stream = Stream.SHUFFLE
) -> NDArray[np.int64]:
    """Return the sample at each `place` of an epoch's order; a permutation of 0 .. size - 1.

    A Feistel network permutes the integers with the bit length of `size`. Results outside the
    range are permuted again until they are inside (cycle walking): below two times on average.
    """
    if not 1 <= size < _LARGEST:
        raise ConfigError(f"size must be between 1 and 2**62 samples, got {size}.")
    bits, keys = max(2, (size - 1).bit_length()), _keys(seed, epoch, stream)
    result = _feistel(place.astype(np.uint64), bits, keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], bits, keys)
    return result.astype(np.int64)


@lru_cache(maxsize=1 << 12)
def _keys(seed: int, epoch: int, stream: Stream) -> list[np.uint64]:
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    counter = (epoch & 0xFFFFFFFF, epoch >> 32, int(stream))
    words = (philox((round_index, *counter), key) for round_index in range(_ROUNDS))
    return [np.uint64((int(high) << 32) | int(low)) for high, low, *_ in words]


def _feistel(value: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Permute integers: the two halves of the bits are XORed in turn with a hash of the other."""
    low_bits = np.uint64(bits // 2)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high, low = value >> low_bits, value & low_mask
    for round_index, key in enumerate(keys):
        if round_index % 2:
            low = low ^ (_mix(high, key) & low_mask)
        else:
            high = high ^ (_mix(low, key) & high_mask)
    return (high << low_bits) | low


def _mix(value: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Hash a value by two multiplications modulo 2**64."""
    mixed = (value ^ key) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX[1]
    return mixed ^ (mixed >> np.uint64(32))
