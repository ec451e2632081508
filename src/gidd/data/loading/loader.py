"""Batches: the same samples at the same step, on one machine or a thousand.

Sample k is a document and a window into it, both pure functions of (seed, k). Global step s has the
samples s * global_batch to (s + 1) * global_batch - 1, and every rank takes its slice of them. So
the loader's whole state is the step: to go on after a crash, or on another number of ranks, start
at the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from gidd.common.optional import optional_package
from gidd.data.batch import Batch
from gidd.data.loading.order import epoch_and_place, shuffled
from gidd.data.loading.shards import Array, ShardSet, TokenShard, open_shard
from gidd.data.manifest import DataManifest
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers
from gidd.errors import ConfigError, DataError

_ENDLESS = 1 << 40
"""Steps that a loader pretends to have; samples go on through the epochs."""


def open_split(folder: str | Path, split: str = "train") -> ShardSet:
    """The shards of one split of a folder that `gidd data prepare` made.

    Sizes are compared with the manifest; checksums take as long as reading everything and are the
    business of `manifest.verify` and `gidd data verify`.
    """
    folder, manifest = Path(folder), DataManifest.read(folder)
    if split not in manifest.splits:
        raise DataError(
            f"{folder} has the splits {', '.join(manifest.splits)}, not {split}. "
            "Prepare it with --validation to hold some documents out."
        )
    shards: list[TokenShard] = []
    for record in manifest.splits[split].shards:
        shard = open_shard(folder / record.file, np.dtype(manifest.dtype).type)
        if (len(shard), len(shard.tokens)) != (record.documents, record.tokens):
            raise DataError(
                f"{shard.file} holds {len(shard)} documents and {len(shard.tokens)} tokens; the "
                f"manifest says {record.documents} and {record.tokens}: it is of another "
                "preparation. Run `gidd data prepare` again."
            )
        shards.append(shard)
    return ShardSet(shards)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How documents become batches."""

    global_batch: int
    """Samples of one optimiser step, on all ranks together."""

    length: int = 512
    """Tokens of a sample. Longer documents give a random window, shorter ones are padded."""

    pad_id: int
    """Id that fills short documents."""

    vocab_size: int
    """Ids must be below this; anything else is damage and is refused."""

    seed: int = 0
    """Of the order and of the windows."""

    shuffle: bool = True
    """False: documents in the order of the files."""

    def __post_init__(self) -> None:
        """Report all impossible settings at once."""
        limits = {"global_batch": 1, "length": 1, "pad_id": 0, "vocab_size": 2, "seed": 0}
        problems = [
            f"data.{field} must be at least {least}, got {getattr(self, field)}."
            for field, least in limits.items()
            if getattr(self, field) < least
        ]
        if self.pad_id >= self.vocab_size:
            problems.append(
                f"data.pad_id must be below data.vocab_size = {self.vocab_size}, got {self.pad_id}."
            )
        if problems:
            raise ConfigError(" ".join(problems))


@final
class BatchSource:
    """One rank's part of every global step, by number: what a Grain pipeline reads from."""

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

    def __len__(self) -> int:
        """Steps; in effect without end."""
        return _ENDLESS

    def __getitem__(self, step: Any) -> dict[str, Array]:
        """Arrays of a `Batch`, filled in place: each token is copied once."""
        config = self.config
        sample = int(step) * config.global_batch + self._slots
        tokens = np.full((len(sample), config.length), config.pad_id, dtype=np.int64)
        lengths = np.empty(len(sample), dtype=np.int64)
        documents, windows = self._documents(sample), self._windows(sample)
        for row, (document, where) in enumerate(zip(documents, windows, strict=True)):
            lengths[row] = self._fill(tokens[row], int(document), float(where))
        self._require_known_ids(tokens, documents)
        valid = np.arange(config.length) < lengths[:, None]
        return {"tokens": tokens, "valid": valid, "sample_index": sample}

    def _documents(self, sample: Array) -> Array:
        """Which document each sample is of."""
        epochs, places = epoch_and_place(sample, len(self.shards))
        if not self.config.shuffle:
            return places
        documents = np.empty_like(places)
        for epoch in np.unique(epochs):  # a step may lie across the end of an epoch
            mine = epochs == epoch
            documents[mine] = shuffled(places[mine], len(self.shards), self.config.seed, int(epoch))
        return documents

    def _windows(self, sample: Array) -> Array:
        """Where the window of each sample begins, as a share in [0, 1) of all beginnings."""
        u = random_integers(
            self.config.seed,
            Stream.CROP,
            0,
            torch.from_numpy(sample),
            torch.zeros(1, dtype=torch.int64),
        )
        return u[:, 0].numpy() / 2.0**UNIT_BITS

    def _fill(self, row: Array, document: int, where: float) -> int:
        """Copy one document's window into `row`; return its length."""
        shard, number = self.shards.locate(document)
        start, stop = shard.bounds(number)
        spare = stop - start - len(row)
        if spare > 0:
            start += min(int(where * (spare + 1)), spare)
            stop = start + len(row)
        row[: stop - start] = shard.tokens[start:stop]
        return stop - start

    def _require_known_ids(self, tokens: Array, documents: Array) -> None:
        """Refuse ids that no text of this vocabulary has: the shard is not what it should be."""
        if tokens.min() >= 0 and tokens.max() < self.config.vocab_size:
            return
        bad = (tokens < 0) | (tokens >= self.config.vocab_size)
        shard, number = self.shards.locate(int(documents[bad.any(-1).argmax()]))
        raise DataError(
            f"{shard.file}: document {number} holds an id outside the vocabulary of "
            f"{self.config.vocab_size}. The shard is damaged or of another tokenizer: "
            "run `gidd data verify`."
        )


@final
class Loader:
    """Batches of one rank, from a step on, read ahead by threads or worker processes."""

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
        grain = optional_package("grain", "data")
        self.step = start
        """The step whose batch comes next: the loader's whole state."""
        source = BatchSource(shards, config, rank, num_ranks)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=read_ahead)
        batches = grain.MapDataset.source(source)[start:].to_iter_dataset(options)
        if num_workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
        self._batches = iter(batches)

    def __iter__(self) -> Iterator[Batch]:
        """Batches without end, in the order of steps."""
        return self

    def __next__(self) -> Batch:
        """The batch of `self.step`; then one step further."""
        arrays = next(self._batches)
        self.step += 1
        batch = Batch(*(torch.from_numpy(arrays[name]) for name in Batch._fields))
        return batch.pinned() if torch.cuda.is_available() else batch

    def close(self) -> None:
        """Stop reading ahead; worker processes end."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
