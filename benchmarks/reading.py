"""Shuffle by blocks: its quality, its cost at a billion documents, and reading object storage.

python benchmarks/reading.py          # tables; about five minutes on two cores
python benchmarks/reading.py --json   # ends with one JSON object

Needs `pip install "gidd[data,s3]" "moto[server]"`: the object storage is moto's S3 server on this
machine, behind a proxy that delays every request by 20 ms (tests/support/object_storage.py).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from script import parser_of, size

from gidd.data import DataManifest, ShardRecord, Split
from gidd.data.loading import (
    BatchSource,
    Loader,
    LoaderConfig,
    ShardSet,
    TokenShard,
    open_split,
    order as order_module,
)
from gidd.data.tokenizers import byte_level
from gidd.diffusion.loss import fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import stratified_times
from gidd.diffusion.weighting import TightWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.vocab import Vocab

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
NETWORK: dict[str, Any] = {"width": 64, "num_layers": 2, "num_heads": 2, "time_width": 16}
ORDERS: dict[str, dict[str, Any]] = {
    "none": {"shuffle": "none"},
    "full": {"shuffle": "full"},
    "blocks": {"shuffle": "blocks"},
}


def resident() -> int:
    """Return the resident bytes of this process (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def documents_of(
    shards: ShardSet, batch: int, steps: int, block_bytes: int, **order: Any
) -> NDArray[np.int64]:
    """Return the documents of random steps of the first epoch, [steps, batch]."""
    config = LoaderConfig(
        global_batch=batch, pad_id=0, vocab_size=2, length=1, block_bytes=block_bytes, **order
    )
    source, rng = BatchSource(shards, config), np.random.default_rng(0)
    chosen = rng.integers(0, len(shards) // batch, steps).tolist()
    return np.array([source.documents(step)[1] for step in chosen])


def quality(
    num: int = size(1 << 21, 1 << 13), batch: int = 512, steps: int = size(100, 3)
) -> dict[str, Any]:
    """Measure steps of a corpus of 4 classes in order: variance of a class, distance, repetition.

    Blocks have 512 documents. The variance is relative to independent draws; the distance is that
    of neighbors in a step, relative to random ones; the last figure is the fraction of neighbors
    that are of the same block.
    """
    ends = np.arange(1, num + 1, dtype=np.uint64)
    shards = ShardSet([TokenShard("a.ds", np.zeros(num, np.uint16), ends)])
    figures: dict[str, Any] = {}
    widths = {f"blocks, window of {blocks}": blocks for blocks in (1, 4, 16, 64)}
    before = order_module.WINDOW_BLOCKS, order_module.OPEN_BLOCKS
    for name, blocks in {"none": 0, "full": 0, **widths}.items():
        order_module.WINDOW_BLOCKS, order_module.OPEN_BLOCKS = max(blocks, 1), 1
        order_module._window_ends.cache_clear()  # pyright: ignore[reportPrivateUsage]
        documents = documents_of(shards, batch, steps, 1024, **ORDERS[name.partition(",")[0]])
        classes = documents * 4 // num
        fractions = np.stack([(classes == k).mean(1) for k in range(4)])
        neighbors = np.abs(np.diff(documents, axis=1))
        same = np.diff(documents // 512, axis=1) == 0
        figures[name] = {
            "variance": float(((fractions - 0.25) ** 2).mean() / (0.25 * 0.75 / batch)),
            "distance": float(neighbors.mean() / (num / 3)),
            "same_block": float(same.mean()),
        }
    order_module.WINDOW_BLOCKS, order_module.OPEN_BLOCKS = before
    return {"quality": figures}


def losses(
    num: int = size(1 << 15, 1 << 9), steps: int = size(400, 2), seeds: int = size(4, 1)
) -> dict[str, Any]:
    """Train a small model on documents sorted by topic; return held-out losses by order.

    4 topics, each a Markov chain of its own over 64 tokens; blocks of 8 documents of 32 tokens.
    """
    rng, length, batch, vocab = np.random.default_rng(0), 32, 32, Vocab(65, mask_id=64)
    chains = rng.dirichlet(np.full(64, 0.05), (4, 64)).cumsum(-1)
    topics = np.concatenate([np.arange(num) * 4 // num, np.arange(512) % 4])
    rows = np.zeros((len(topics), length), dtype=np.uint16)
    for column in range(1, length):
        drawn = rng.random(len(topics))[:, None] > chains[topics, rows[:, column - 1]]
        rows[:, column] = np.minimum(drawn.sum(-1), 63)
    ends = np.arange(1, num + 1, dtype=np.uint64) * length
    shards = ShardSet([TokenShard("a.ds", rows[:num].ravel(), ends)])
    held_out, schedule = torch.from_numpy(rows[num:].astype(np.int64)), HybridSchedule(vocab, 0.1)
    network = DiTConfig(vocab_size=vocab.size, max_length=length, **NETWORK)

    def loss_of(denoiser: Denoiser, x: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        slot = torch.arange(len(x))
        t = stratified_times(seed, step, slot, len(x))
        u = random_integers(seed, Stream.NOISE, step, slot, torch.arange(length))
        z = noise(schedule, t, x, u)
        weight = TightWeighting(schedule)(t, x, z) / x.numel()
        hidden, head = denoiser.hidden(z, t), denoiser.head()
        return fused_loss(schedule, t, x, z, hidden, head.weight, head.bias, weight).loss

    figures: dict[str, Any] = {}
    for name, order in ORDERS.items():
        results: list[float] = []
        for seed in range(seeds):
            config = LoaderConfig(
                global_batch=batch, length=length, pad_id=0, vocab_size=65, seed=seed,
                block_bytes=8 * length * 2, **order,
            )  # fmt: skip
            torch.manual_seed(seed)
            denoiser, source = Denoiser(DiT(network), vocab), BatchSource(shards, config)
            optimizer = torch.optim.AdamW(denoiser.parameters(), lr=2e-3)
            for step in range(steps):
                x = torch.from_numpy(source[step]["tokens"])
                loss_of(denoiser, x, seed, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                results.append(float(loss_of(denoiser.eval(), held_out, 0, 0)))
        figures[name] = {"mean": statistics.mean(results)}
        figures[name]["deviation"] = statistics.stdev(results) if seeds > 1 else 0.0
    return {"losses": figures}


def scale(folder: Path) -> dict[str, Any]:
    """Measure the start of rank 0 of 1,024 from a manifest of 10^8 and of 10^9 documents.

    Documents of 1,000 tokens in shards of 2 GiB, which do not exist: the manifest is all that is
    read. Batches of 8,192 samples.
    """
    figures: dict[str, Any] = {}
    for documents in size((10**8, 10**9), (10**4,)):
        with get_context("fork").Pool(1) as pool:  # memory is that of a process of its own
            figures[f"{documents:.0e}"] = pool.apply(start_of_rank, (folder, documents))
    return {"scale": figures}


def start_of_rank(folder: Path, documents: int) -> dict[str, float]:
    """Write a manifest, and measure what opening it, the first step and further steps take."""
    tokenizer, per_shard = byte_level(), min(2**31 // 2000, documents)
    tokenizer.save(folder)
    digests = {"tokens_sha256": "0" * 64, "index_sha256": "0" * 64}
    sizes = {"documents": per_shard, "tokens": per_shard * 1000} | digests
    names = (f"train/{index:05}.ds" for index in range(documents // per_shard))
    records = [ShardRecord(file=name, **sizes) for name in names]  # pyright: ignore[reportArgumentType]
    DataManifest(
        tokenizer=tokenizer.fingerprint,
        vocab=tokenizer.vocab,
        end_id=tokenizer.end_id,
        dtype="uint16",
        splits={"train": Split.of(records)},
    ).write(folder)
    config = LoaderConfig(global_batch=8192, pad_id=0, vocab_size=259, shuffle="blocks")
    memory, start = resident(), time.perf_counter()
    shards = open_split(f"file://{folder}")
    opened = time.perf_counter()
    source = BatchSource(shards, config, 0, 1024)
    source.documents(0)
    ordered = time.perf_counter()
    for step in range(1, 101):
        source.documents(step)
    return {
        "megabytes": (resident() - memory) / 1e6,
        "manifest_seconds": opened - start,
        "order_seconds": ordered - opened,
        "step_milliseconds": (time.perf_counter() - ordered) * 10,
    }


def storage(folder: Path, seconds: float = 0.02) -> dict[str, Any]:
    """Measure requests and throughput of an S3 server, with 20 ms added to every request.

    A step of 100 ms, as of a GPU, leaves the processor idle. Blocks of 64 KiB, about 33 documents,
    make the small corpus turn over; with the 2 MiB of a run, requests are 32 times fewer.
    """
    from support.object_storage import (  # pyright: ignore[reportMissingImports]
        Proxy,
        environment,
        s3_server,
        set_environment,
        synthetic_folder,
        upload,
    )

    batch, length, steps, data = 16, size(256, 16), size(600, 4), folder / "data"
    synthetic_folder(data, 2, size(5000, 40))

    def read(where: Any, block_bytes: int, step_seconds: float) -> float:
        config = LoaderConfig(
            global_batch=batch, length=length, pad_id=257, vocab_size=259, shuffle="blocks",
            block_bytes=block_bytes,
        )  # fmt: skip
        loader, start = Loader(open_split(where), config), time.perf_counter()
        for _ in range(steps):
            next(loader)
            time.sleep(step_seconds)
        loader.close()
        return time.perf_counter() - start

    with s3_server() as port:
        url, proxy = upload(data, port, "data"), Proxy(port, seconds)
        figures: dict[str, Any] = {}
        for name, block_bytes, step_seconds in (
            ("steps of 100 ms", 1 << 16, size(0.1, 0.001)),
            ("steps of 100 ms, blocks of 2 MiB", 2 << 20, size(0.1, 0.001)),
            ("loader alone", 1 << 16, 0.0),
            ("loader alone, blocks of 2 MiB", 2 << 20, 0.0),
        ):
            set_environment(environment(proxy.port, folder / name))
            proxy.requests.clear()
            local, remote = (read(where, block_bytes, step_seconds) for where in (data, url))
            blocks = [line for line in proxy.requests if ".ds" in line]
            figures[name] = {
                "throughput_ratio": local / remote,
                "requests_per_1000_documents": len(blocks) / (steps * batch) * 1000,
                "local_seconds": local,
                "remote_seconds": remote,
            }
        proxy.close()
    return {"storage": figures}


def main() -> None:
    """Run all measurements and print them."""
    parser = parser_of(__doc__)
    as_json = parser.parse_args().json
    torch.set_num_threads(1)
    os.environ.setdefault("GIDD_CACHE", tempfile.mkdtemp())
    results: dict[str, Any] = quality() | losses()
    for measure in (scale, storage):
        with tempfile.TemporaryDirectory() as folder:
            results |= measure(Path(folder))
    for title, rows in results.items():
        names = list(next(iter(rows.values())))
        print(f"\n| {title} | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
        for name, row in rows.items():
            print(f"| {name} | {' | '.join(f'{row[key]:.4g}' for key in names)} |")
    if as_json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
