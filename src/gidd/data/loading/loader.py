"""Batches: the same samples at the same step for any number of ranks and workers.

Sample k is a document, or with packing a row of documents, and a window of it: pure functions of
(seed, k). Global step s has the samples s * global_batch to (s + 1) * global_batch - 1, of which
every rank takes a slice. The step is the complete state of the loader: to resume, also on another
number of ranks, start at the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from gidd.common.config.allowed import integer, problems_of, require_none
from gidd.common.optional import optional_package
from gidd.common.urls import is_url
from gidd.data.batch import Batch
from gidd.data.loading.order import BLOCK_BYTES, BlockOrder, DocumentOrder, Pace, Shuffle
from gidd.data.loading.shards import (
    Array,
    ShardSet,
    TokenShard,
    invalid_tokens,
    open_shard,
    remote_shard,
)
from gidd.data.manifest import DataManifest
from gidd.data.processes import follow_parent
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers
from gidd.errors import ConfigError, DataError

_STEPS_AHEAD = 32
"""Steps after which a window in object storage is needed when its blocks are requested."""

_ENDLESS = 1 << 40
"""Length of a `BatchSource`, in effect infinite: samples continue through the epochs."""


def open_split(folder: str | Path, split: str = "train") -> ShardSet:
    """Open the shards of a split; the manifest's sizes are checked, not checksums (`verify`)."""
    manifest = DataManifest.read(folder)
    if split not in manifest.splits:
        raise DataError(
            f"{folder} has the splits {', '.join(manifest.splits)}, not {split}. "
            "Prepare it with --validation N to hold out documents."
        )
    if is_url(str(folder)):
        records = manifest.splits[split].shards
        return ShardSet([remote_shard(str(folder), record, manifest.dtype) for record in records])
    shards: list[TokenShard] = []
    for record in manifest.splits[split].shards:
        has_given = record.given_sha256 is not None
        shard = open_shard(Path(folder) / record.file, np.dtype(manifest.dtype).type, has_given)
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
    shuffle: Shuffle = "full"
    """full: of all documents, every epoch; blocks: of blocks, and of samples inside windows of
    blocks; none: order of the files."""
    block_bytes: Annotated[int, integer(1)] = BLOCK_BYTES
    """Size of the blocks."""
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
        self,
        shards: ShardSet | Sequence[ShardSet],
        config: LoaderConfig,
        rank: int = 0,
        num_ranks: int = 1,
        paces: Sequence[Pace] = (),
    ) -> None:
        """`shards` are those of a source, or of several with a `Pace` for each."""
        if not 0 <= rank < num_ranks <= config.global_batch:
            raise ConfigError(
                f"rank must be in [0, num_ranks) and num_ranks at most data.global_batch = "
                f"{config.global_batch}, got rank {rank} of {num_ranks}. "
                "Use a larger global batch or fewer ranks."
            )
        self.config = config
        self.sources = (shards,) if isinstance(shards, ShardSet) else tuple(shards)
        self.paces = tuple(paces) or (Pace(((0, config.global_batch),)),)
        first, stop = (config.global_batch * at // num_ranks for at in (rank, rank + 1))
        self._slots = np.arange(first, stop)
        self.orders = [
            order_of(source, replace(config, seed=config.seed + (index << 32)), pace)
            for index, (source, pace) in enumerate(zip(self.sources, self.paces, strict=True))
        ]
        self._has_given = any(source.has_given for source in self.sources)
        self._is_remote = any(is_url(source.shards[0].file) for source in self.sources)
        self._reader: BlockReader | None = None  # has threads: made where batches are read

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, step: Any) -> dict[str, Array]:
        """Return the arrays of a `Batch`; each token is copied once."""
        config, step = self.config, int(step)
        if self._is_remote:
            self._reader = self._reader or BlockReader()
            self._reader.read(
                self._blocks(step), self._blocks(step + _STEPS_AHEAD, in_windows=True)
            )
        sample = step * config.global_batch + self._slots
        tokens = np.full((len(sample), config.length), config.pad_id, dtype=np.int64)
        given = np.zeros(tokens.shape if self._has_given else 0, dtype=np.bool_)
        segments = np.full(tokens.shape, -1, dtype=np.int32)
        (orders, firsts, ends), windows = self.documents(step), self._windows(sample)
        for row, (order, first, end) in enumerate(zip(orders, firsts, ends, strict=True)):
            at = 0
            for document in range(first, end):
                place = self.orders[order].locate(document)
                shard, start, stop = self._window(*place, float(windows[row]))
                columns = slice(at, at := at + stop - start)
                tokens[row, columns] = shard.tokens[start:stop]
                segments[row, columns] = document - first
                if shard.given is not None:
                    given[row, columns] = shard.given[start:stop]
        self._require_valid_tokens(tokens, orders, firsts[:, None] + segments)
        arrays = {"tokens": tokens, "valid": segments >= 0, "sample_index": sample}
        arrays |= {"given": given} if self._has_given else {}
        return arrays | ({"segments": segments} if config.packing else {})

    def documents(self, step: int) -> tuple[Array, Array, Array]:
        """Return the source of each sample of a step, its first document, and one past its last."""
        result = np.zeros((3, len(self._slots)), dtype=np.int64)
        for source, mine, index in self._indices(step):
            result[1:, mine] = self.orders[source].documents(index)
            result[0, mine] = source
        return result[0], result[1], result[2]

    def close(self) -> None:
        """Stop reading ahead."""
        if self._reader is not None:
            self._reader.close()

    def _indices(self, step: int) -> Generator[tuple[int, Array, Array]]:
        """Yield each source with the samples of a step that it has, and their indices in it."""
        start = 0
        for source, pace in enumerate(self.paces):
            end = start + pace.samples(step)
            mine = (start <= self._slots) & (self._slots < end)
            if mine.any():
                yield source, mine, pace.index(step) + self._slots[mine] - start
            start = end

    def _blocks(self, step: int, *, in_windows: bool = False) -> set[tuple[BlockOrder, int]]:
        """Return the blocks of the samples of a step, or all blocks of their windows."""
        blocks = set[tuple[BlockOrder, int]]()
        for source, _, index in self._indices(step):
            order = self.orders[source]
            if isinstance(order, BlockOrder):
                parts = order.open_blocks(index) if in_windows else order.rows(index)[0].tolist()
                blocks.update((order, block) for block in parts)
        return blocks

    def _windows(self, sample: Array) -> Array:
        """Return the start of each sample's window, as a fraction in [0, 1) of all starts."""
        position = torch.zeros(1, dtype=torch.int64)
        u = random_integers(self.config.seed, Stream.CROP, 0, torch.from_numpy(sample), position)
        return u[:, 0].numpy() / 2.0**UNIT_BITS

    def _window(
        self, shard: TokenShard, document: int, where: float
    ) -> tuple[TokenShard, int, int]:
        """Return the shard of a document, and start and end of the window of a sample in it."""
        start, stop = shard.bounds(document)
        spare = stop - start - self.config.length
        if spare > 0:
            is_chat = shard.given is not None  # a chat without its last answer is of no use
            start += spare if is_chat else min(int(where * (spare + 1)), spare)
            stop = start + self.config.length
        return shard, start, stop

    def _require_valid_tokens(self, tokens: Array, sources: Array, documents: Array) -> None:
        if tokens.min() >= 0 and tokens.max() < self.config.vocab_size:
            return
        bad = (tokens < 0) | (tokens >= self.config.vocab_size)
        source = self.sources[sources[bad.any(1)][0]]
        shard, index = source.locate(int(documents[bad][0]))
        raise invalid_tokens(f"{shard.file}: document {index}", self.config.vocab_size)


def order_of(shards: ShardSet, config: LoaderConfig, pace: Pace) -> DocumentOrder | BlockOrder:
    """Return the order that a configuration asks for."""
    packed_length = config.length if config.packing else None
    if config.shuffle == "blocks":
        size = config.block_bytes
        return BlockOrder(shards, config.seed, packed_length, block_bytes=size, pace=pace)
    is_shuffled = config.shuffle == "full"
    return DocumentOrder(shards, config.seed, packed_length, shuffle=is_shuffled)


class BlockReader:
    """Reads blocks in object storage into the cache, many at a time."""

    def __init__(self) -> None:
        self._now = ThreadPoolExecutor(16, "gidd-blocks")
        self._later = ThreadPoolExecutor(8, "gidd-blocks-ahead")
        self._requested = set[tuple[BlockOrder, int]]()

    def read(self, now: set[tuple[BlockOrder, int]], later: set[tuple[BlockOrder, int]]) -> None:
        """Read some blocks, and start to read others; errors of those are raised when needed."""
        for order, block in later - self._requested - now:
            self._later.submit(order.read, block)
        self._requested = later
        for future in [self._now.submit(order.read, block) for order, block in now]:
            future.result()

    def close(self) -> None:
        """Drop what is not yet read."""
        for pool in (self._now, self._later):
            pool.shutdown(cancel_futures=True)


class Loader:
    """Iterator over the batches of one rank, read ahead by a thread or by worker processes."""

    def __init__(
        self,
        shards: ShardSet | Sequence[ShardSet],
        config: LoaderConfig,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        paces: Sequence[Pace] = (),
        start: int = 0,
        num_workers: int = 0,
        read_ahead: int = 2,
    ) -> None:
        self.step = start
        """Step of the next batch: the complete state of the loader."""
        source = BatchSource(shards, config, rank, num_ranks, paces)
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
        source.close()


def import_grain() -> Any:
    """Import Grain without its warning that jax, which is not needed, is not installed."""
    note = "Failed to load jax profiler"
    logging.getLogger("absl").addFilter(lambda record: note not in record.getMessage())
    return optional_package("grain", "data")
