"""Batches: the same samples at the same step for any number of ranks and workers.

Sample k is a document, or with packing a row of documents, and a window of it: pure functions of
(seed, k). Global step s has the samples s * global_batch to (s + 1) * global_batch - 1, of which
every rank takes a slice. The step is the complete state of the loader: to resume, also on another
number of ranks, start at the next.
"""

from __future__ import annotations

import logging
import os
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
from gidd.data.loading.order import (
    BLOCK_BYTES,
    LANE_SAMPLES,
    BlockOrder,
    DocumentOrder,
    Pace,
    Shuffle,
)
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
from gidd.data.store import CACHE_BYTES
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers
from gidd.errors import ConfigError, DataError

_CONNECTIONS, _STEPS_AHEAD = 16, 32
"""Blocks in object storage that are read at once, and how many steps before their window."""

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
        if self._is_remote:
            self._require_cache()
        self._pool: ThreadPoolExecutor | None = None  # made in the process that reads batches
        self._requested = set[tuple[BlockOrder, int]]()

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, step: Any) -> dict[str, Array]:
        """Return the arrays of a `Batch`; each token is copied once."""
        config, step = self.config, int(step)
        if self._is_remote:
            self._read_ahead(step)
        sample = step * config.global_batch + self._slots
        tokens = np.full((len(sample), config.length), config.pad_id, dtype=np.int64)
        given = np.zeros(tokens.shape if self._has_given else 0, dtype=np.bool_)
        segments = np.full(tokens.shape, -1, dtype=np.int32)
        (orders, firsts, ends), windows = self.documents(step), self._windows(sample)
        for row, (order, first, end) in enumerate(zip(orders, firsts, ends, strict=True)):
            at = 0
            for document in range(first, end):
                shard, index = self.orders[order].locate(document)
                start, stop = self._window(shard, index, float(windows[row]))
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
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _indices(self, step: int) -> Generator[tuple[int, Array, Array]]:
        """Yield each source with the samples of a step that it has, and their indices in it."""
        start = 0
        for source, pace in enumerate(self.paces):
            end = start + pace.samples(step)
            mine = (start <= self._slots) & (self._slots < end)
            if mine.any():
                yield source, mine, pace.index(step) + self._slots[mine] - start
            start = end

    def _require_cache(self) -> None:
        """Refuse a cache that is smaller than the windows that the ranks of a machine have open."""
        lanes, limit = -(-len(self._slots) // LANE_SAMPLES) + 1, CACHE_BYTES.value * 3 // 4
        orders = [order for order in self.orders if isinstance(order, BlockOrder)]
        blocks = sum(min(lanes * order.window_blocks(0), order.num_blocks) for order in orders)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if (size := blocks * self.config.block_bytes * ranks) > limit:
            raise ConfigError(
                f"{CACHE_BYTES.variable} must be at least {size * 4 // 3:,} for the windows that "
                f"{ranks} ranks of a machine read at the same time, got {CACHE_BYTES.value:,}. "
                "Raise it, or use more machines or a smaller train.global_batch."
            )

    def _read_ahead(self, step: int) -> None:
        """Start to read the blocks of windows that are needed some steps later, or now."""
        self._pool = self._pool or ThreadPoolExecutor(_CONNECTIONS, "gidd-blocks")
        blocks = {
            (order, block)
            for source, _, index in self._indices(step + _STEPS_AHEAD)
            if isinstance(order := self.orders[source], BlockOrder)
            for _, _, window, _ in order.windows(index)
            for block in window.tolist()
        }
        for order, block in blocks - self._requested:
            self._pool.submit(order.read, block)  # an error is raised when the block is needed
        self._requested = blocks

    def _windows(self, sample: Array) -> Array:
        """Return the start of each sample's window, as a fraction in [0, 1) of all starts."""
        position = torch.zeros(1, dtype=torch.int64)
        u = random_integers(self.config.seed, Stream.CROP, 0, torch.from_numpy(sample), position)
        return u[:, 0].numpy() / 2.0**UNIT_BITS

    def _window(self, shard: TokenShard, document: int, where: float) -> tuple[int, int]:
        """Return start and end of the window of a sample in a document."""
        start, stop = shard.bounds(document)
        spare = stop - start - self.config.length
        if spare > 0:
            is_chat = shard.given is not None  # a chat without its last answer is of no use
            start += spare if is_chat else min(int(where * (spare + 1)), spare)
            stop = start + self.config.length
        return start, stop

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
        self._source = source = BatchSource(shards, config, rank, num_ranks, paces)
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

    def epochs(self, step: int) -> dict[str, float]:
        """Return the epochs that each source of a mixture has had before a step."""
        pairs = zip(self._source.orders, self._source.paces, strict=True)
        epochs = [pace.index(step) / order.size for order, pace in pairs]
        return {f"epochs/{at}": of for at, of in enumerate(epochs)} if len(epochs) > 1 else {}

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
