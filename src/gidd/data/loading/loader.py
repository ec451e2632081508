"""Batches: the same samples at the same step for any number of ranks and workers.

Sample k is a document, or with packing a row of documents, and a window of it: pure functions of
(seed, k). Global step s has the samples s * global_batch to (s + 1) * global_batch - 1, of which
every rank takes a slice. The step is the complete state of the loader: to resume, also on another
number of ranks, start at the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gidd.common.config.allowed import integer, problems_of, require_none
from gidd.common.optional import optional_package
from gidd.data.batch import Batch
from gidd.data.loading.shards import Array, ShardSet, TokenShard, invalid_tokens, open_shard
from gidd.data.manifest import DataManifest
from gidd.data.processes import follow_parent
from gidd.diffusion.randomness import UNIT_BITS, Stream, philox, random_integers
from gidd.errors import ConfigError, DataError

_ENDLESS = 1 << 40
"""Length of a `BatchSource`, in effect infinite: samples continue through the epochs."""

_ROUNDS = 8
_LARGEST = 1 << 62
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


def open_split(folder: str | Path, split: str = "train") -> ShardSet:
    """Open the shards of a split; the manifest's sizes are checked, not checksums (`verify`)."""
    folder, manifest = Path(folder), DataManifest.read(folder)
    if split not in manifest.splits:
        raise DataError(
            f"{folder} has the splits {', '.join(manifest.splits)}, not {split}. "
            "Prepare it with --validation N to hold out documents."
        )
    shards: list[TokenShard] = []
    for record in manifest.splits[split].shards:
        has_given = record.given_sha256 is not None
        shard = open_shard(folder / record.file, np.dtype(manifest.dtype).type, has_given)
        if (len(shard), len(shard.tokens)) != (record.documents, record.tokens):
            raise DataError(
                f"{shard.file} has {len(shard)} documents and {len(shard.tokens)} tokens, but "
                f"{record.documents} and {record.tokens} in the manifest: it is of another "
                "preparation. Run `gidd data prepare` again."
            )
        shards.append(shard)
    return ShardSet(shards)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How documents become batches."""

    global_batch: Annotated[int, integer(1)]
    """Samples per optimiser step, over all ranks."""
    length: Annotated[int, integer(1)] = 512
    """Tokens per sample. Longer documents are cropped, texts at random and chats to the last
    tokens; shorter ones are padded."""
    pad_id: int
    vocab_size: Annotated[int, integer(2)]
    """Token ids at or above it raise `DataError`."""
    seed: Annotated[int, integer(0)] = 0
    shuffle: bool = True
    """Whether to shuffle the documents every epoch; False: order of the files."""
    packing: bool = False
    """Whether a sample has as many consecutive documents as fit; longer ones are cropped alone."""

    def __post_init__(self) -> None:
        require_none(problems_of(self, "data."))

    def problems(self) -> Iterable[str]:
        """Yield a message if padding is no token."""
        yield from integer(0, self.vocab_size - 1).problems("data.pad_id", self.pad_id)


class BatchSource:
    """The arrays of one rank's batch, indexed by step."""

    def __init__(
        self, shards: ShardSet, config: LoaderConfig, rank: int = 0, num_ranks: int = 1
    ) -> None:
        if not 0 <= rank < num_ranks <= config.global_batch:
            raise ConfigError(
                f"rank must be in [0, num_ranks) and num_ranks at most data.global_batch = "
                f"{config.global_batch}, got rank {rank} of {num_ranks}. "
                "Use a larger global batch or fewer ranks."
            )
        self.shards, self.config = shards, config
        first, stop = (config.global_batch * at // num_ranks for at in (rank, rank + 1))
        self._slots = np.arange(first, stop)
        self._packed = packed_rows(shards, config.length) if config.packing else None

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, step: Any) -> dict[str, Array]:
        """Return the arrays of a `Batch`; each token is copied once."""
        config = self.config
        sample = int(step) * config.global_batch + self._slots
        tokens = np.full((len(sample), config.length), config.pad_id, dtype=np.int64)
        given = np.zeros(tokens.shape if self.shards.has_given else 0, dtype=np.bool_)
        segments = np.full(tokens.shape, -1, dtype=np.int32)
        (firsts, ends), windows = self.documents(sample), self._windows(sample)
        for row, (first, end, where) in enumerate(zip(firsts, ends, windows, strict=True)):
            at = 0
            for document in range(first, end):
                shard, start, stop = self._window(document, float(where))
                columns = slice(at, at := at + stop - start)
                tokens[row, columns] = shard.tokens[start:stop]
                segments[row, columns] = document - first
                if shard.given is not None:
                    given[row, columns] = shard.given[start:stop]
        self._require_valid_tokens(tokens, firsts[:, None] + segments)
        arrays = {"tokens": tokens, "valid": segments >= 0, "sample_index": sample}
        arrays |= {"given": given} if self.shards.has_given else {}
        return arrays | ({"segments": segments} if config.packing else {})

    def documents(self, sample: Array) -> tuple[Array, Array]:
        """Return the first document of each sample, and one past its last."""
        size = len(self.shards) if self._packed is None else len(self._packed) - 1
        epochs, rows = np.divmod(sample, size)
        if self.config.shuffle:
            for epoch in np.unique(epochs):  # a step may contain the end of an epoch
                mine = epochs == epoch
                rows[mine] = shuffled(rows[mine], size, self.config.seed, int(epoch))
        if self._packed is None:
            return rows, rows + 1
        return self._packed[rows], self._packed[rows + 1]

    def _windows(self, sample: Array) -> Array:
        """Return the start of each sample's window, as a fraction in [0, 1) of all starts."""
        position = torch.zeros(1, dtype=torch.int64)
        u = random_integers(self.config.seed, Stream.CROP, 0, torch.from_numpy(sample), position)
        return u[:, 0].numpy() / 2.0**UNIT_BITS

    def _window(self, document: int, where: float) -> tuple[TokenShard, int, int]:
        """Return the shard of a document, and start and end of the window of a sample in it."""
        shard, index = self.shards.locate(document)
        start, stop = shard.bounds(index)
        spare = stop - start - self.config.length
        if spare > 0:
            is_chat = shard.given is not None  # a chat without its last answer is of no use
            start += spare if is_chat else min(int(where * (spare + 1)), spare)
            stop = start + self.config.length
        return shard, start, stop

    def _require_valid_tokens(self, tokens: Array, documents: Array) -> None:
        if tokens.min() >= 0 and tokens.max() < self.config.vocab_size:
            return
        bad = (tokens < 0) | (tokens >= self.config.vocab_size)
        shard, index = self.shards.locate(int(documents[bad][0]))
        raise invalid_tokens(f"{shard.file}: document {index}", self.config.vocab_size)


def packed_rows(shards: ShardSet, length: int) -> NDArray[np.int64]:
    """Return the first document of each packed row, and at the end the number of documents.

    A row has consecutive documents of at most `length` tokens together, or one longer document.
    """
    ends = np.cumsum(np.concatenate([shard.sizes() for shard in shards.shards]))
    # the first document that no longer fits, for rows that start at each document
    after = np.searchsorted(ends, np.concatenate([[0], ends[:-1]]) + length, side="right")
    after = np.maximum(after, np.arange(1, len(ends) + 1))
    rows = [0]
    while rows[-1] < len(ends):
        rows.append(after.item(rows[-1]))
    return np.array(rows)


class Loader:
    """Iterator over the batches of one rank, read ahead by a thread or by worker processes."""

    def __init__(
        self,
        shards: ShardSet,
        config: LoaderConfig,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        start: int = 0,
        num_workers: int = 0,
        read_ahead: int = 2,
    ) -> None:
        self.step = start
        """Step of the next batch: the complete state of the loader."""
        source = BatchSource(shards, config, rank, num_ranks)
        if num_workers:
            grain = import_grain()
            options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=read_ahead)
            batches = grain.MapDataset.source(source)[start:].to_iter_dataset(options)
            workers = grain.multiprocessing.MultiprocessingOptions(num_workers)
            self._batches: Iterator[dict[str, Array]] = iter(
                batches.mp_prefetch(workers, worker_init_fn=follow_parent)
            )
        else:
            self._batches = _read_in_thread(source, start, read_ahead)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the batch of `self.step` and increment it."""
        arrays = next(self._batches)
        self.step += 1
        batch = Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        return batch.pin_memory() if torch.cuda.is_available() else batch

    def close(self) -> None:
        """Stop reading ahead; worker processes exit."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = iter(())


def _read_in_thread(source: BatchSource, start: int, ahead: int) -> Generator[dict[str, Array]]:
    """Yield the batches of all steps from `start` on; a thread reads `ahead` steps ahead."""
    pool = ThreadPoolExecutor(1, "gidd-loader")
    try:
        pending: deque[Future[dict[str, Array]]] = deque()
        for step in count(start):
            pending.append(pool.submit(source.__getitem__, step))
            if len(pending) > ahead:
                yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def import_grain() -> Any:
    """Import Grain without its warning that jax, which is not needed, is not installed."""
    note = "Failed to load jax profiler"
    logging.getLogger("absl").addFilter(lambda record: note not in record.getMessage())
    return optional_package("grain", "data")


def shuffled(place: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the sample at each `place` of an epoch's order; a permutation of 0 .. size - 1.

    A Feistel network permutes the integers with the bit length of `size`. Results outside the
    range are permuted again until they are inside (cycle walking): below two times on average.
    """
    if not 1 <= size < _LARGEST:
        raise ConfigError(f"size must be between 1 and 2**62 samples, got {size}.")
    bits = max(2, (size - 1).bit_length())
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    counter = (epoch & 0xFFFFFFFF, epoch >> 32, int(Stream.SHUFFLE))
    words = (philox((round_index, *counter), key) for round_index in range(_ROUNDS))
    keys = [np.uint64((int(high) << 32) | int(low)) for high, low, *_ in words]
    result = _feistel(place.astype(np.uint64), bits, keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], bits, keys)
    return result.astype(np.int64)


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
