"""What our training step costs beside the bare engine, and what surrounds it costs beside the step.

    OMP_WAIT_POLICY=PASSIVE KMP_BLOCKTIME=0 python benchmarks/train.py --json

`step_ratio`: the step of `small` (GIDD, p_u = 0.1, dynamic weights, 50,258 ids; noise, fused loss,
clipping, sums, AdamW) over a step of the same DiT trained with `F.cross_entropy` and `AdamW` in
plain PyTorch; both in bf16 autocast, in alternation, medians. `overhead_share`: the share of a real
`micro` run that goes into reports, checkpoints and data.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from gidd.data.batch import Batch
from gidd.data.loading.loader import Loader
from gidd.models import DiT
from gidd.models.init import Initializer
from gidd.runs.fit import fit
from gidd.runs.presets import PRESETS
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.checkpoints.checkpoints import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.reporting.report import Report
from gidd.training.reporting.trackers import default_trackers
from gidd.training.state import TrainState
from gidd.training.world import World, open_world
from gidd.vocab import Vocab

GPT2 = Vocab(50_258, mask_id=50_257, pad_id=50_256)


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def step_times(size: str, samples: int, rounds: int, world: World) -> tuple[float, float]:
    """Median seconds of our step and of the bare one."""
    preset = PRESETS[f"{size}-gidd-plus-0.1"]
    run = replace(preset, train=replace(preset.train, global_batch=samples))
    state = build_state(run, GPT2, world)
    tokens = torch.randint(0, 50_000, (samples, run.data.length))
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(samples))
    bare = bare_step(run, tokens)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):
        ours.append(timed(lambda: step(run, world, state, batch)))
        theirs.append(timed(bare))
    return median(ours[1:]), median(theirs[1:])


def step(run: RunConfig, world: World, state: TrainState, batch: Batch) -> None:
    """Both halves of our step."""
    loop.update(run, state, loop.gradients(run, world, state, batch))


def bare_step(run: RunConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """The same network trained in plain PyTorch."""
    model = DiT(run.model.build(GPT2.size, run.data.length))
    model.reset_parameters(Initializer(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    t = torch.rand(len(tokens))

    def bare() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, t)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return bare


@contextmanager
def clocked(spent: list[float], owner: Any, *names: str) -> Generator[None]:
    """Add up the time that calls of some methods take."""
    kept = {name: getattr(owner, name) for name in names}

    def clock(method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            began = time.perf_counter()
            try:
                return method(*args, **keywords)
            finally:
                spent.append(time.perf_counter() - began)

        return call

    for name, method in kept.items():
        setattr(owner, name, clock(method))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(owner, name, method)


def overhead(steps: int, folder: Path, world: World) -> dict[str, float]:
    """Shares of a `micro` run on the speeches: reports (TensorBoard too), checkpoints, data.

    It saves every 25 steps and reports every 10, more often than the preset does.
    """
    preset = PRESETS["micro"]
    train = replace(
        preset.train, steps=steps, save_every=25, evaluate_every=10 * steps, evaluate_samples=1
    )
    run = replace(preset, train=train)
    fit(replace(run, train=replace(train, steps=1)), folder / "warm", world, quiet=True)
    run = replace(run, data=replace(run.data, folder=folder / "warm" / "data"))
    parts: dict[str, list[float]] = {"reports": [], "checkpoints": [], "data": [], "steps": []}
    with (
        clocked(parts["reports"], Report, "training"),
        clocked(parts["checkpoints"], Checkpoints, "save", "wait"),
        clocked(parts["data"], Loader, "__next__"),
        clocked(parts["steps"], loop, "gradients", "update"),
    ):
        fit(
            run,
            folder / "run",
            world,
            quiet=True,
            trackers=lambda start: default_trackers(folder / "run", start),
        )
    busy = sum(parts["steps"])
    return {name: sum(spent) / busy for name, spent in parts.items() if name != "steps"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--samples", type=int, default=4, help="of 512 tokens, in a step")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="of the micro run")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with open_world("cpu") as world:
        for size in ("small", "tiny"):
            ours, bare = step_times(size, arguments.samples, arguments.rounds, world)
            print(f"{size}: {ours:.3f} s a step, bare {bare:.3f} s, ratio {ours / bare:.3f}")
            figures[f"{size}_step_ratio"] = ours / bare
        with tempfile.TemporaryDirectory() as folder:
            shares = overhead(arguments.steps, Path(folder), world)
    for name, share in shares.items():
        print(f"micro, {name}: {share:.2%} of the steps")
    figures |= {"step_ratio": figures["small_step_ratio"], "overhead_share": sum(shares.values())}
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
