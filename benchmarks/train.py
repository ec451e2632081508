"""Cost of the training step relative to plain PyTorch, and of everything around the step.

    OMP_WAIT_POLICY=PASSIVE KMP_BLOCKTIME=0 python benchmarks/train.py --json

`step_ratio`: time of a step of `small` (GIDD, p_u = 0.1, dynamic weights, vocabulary size 50,258;
noise, fused loss, clipping, sums, AdamW) divided by that of the same DiT trained with
`F.cross_entropy` and `AdamW` in plain PyTorch; both in bf16 autocast if the CPU has
instructions for it, else in float32; alternating, medians.
`overhead_share`: time of a real `micro` run for reports, checkpoints and data, as a fraction of the
time of its steps.
"""

from __future__ import annotations

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
from script import parser_of, size

from gidd.common.devices import has_bf16
from gidd.data.batch import Batch
from gidd.data.loading.loader import Loader
from gidd.models import DiT
from gidd.models.networks import Initializer
from gidd.runs.fit import fit
from gidd.runs.presets import PRESETS
from gidd.training import loop
from gidd.training.build import build_state, with_precision
from gidd.training.checkpoints.manager import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.reporting.report import Report
from gidd.training.reporting.trackers import default_trackers
from gidd.training.state import TrainState
from gidd.training.world import World, open_world
from gidd.vocab import Vocab

GPT2 = Vocab(size(50_258, 300), mask_id=size(50_257, 299), pad_id=size(50_256, 298))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def step_times(network: str, samples: int, rounds: int, world: World) -> tuple[float, float]:
    """Return the median seconds of the step of gidd and of the plain one."""
    preset = PRESETS[f"{network}-gidd-plus-0.1"]
    data = replace(preset.data, length=size(preset.data.length, 16))
    backbone = preset.backbone.changed(**size({}, {"num_layers": 1}))
    run = replace(
        preset, backbone=backbone, data=data, train=replace(preset.train, global_batch=samples)
    )
    run = with_precision(run, has_bf16(world.device))
    state = build_state(run, GPT2, world)
    tokens = torch.randint(0, GPT2.size - 258, (samples, run.data.length))
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(samples))
    plain = plain_step(run, tokens)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):
        ours.append(timed(lambda: step(run, world, state, batch)))
        theirs.append(timed(plain))
    return median(ours[1:]), median(theirs[1:])


def step(run: RunConfig, world: World, state: TrainState, batch: Batch) -> None:
    """Run gradients and update."""
    loop.update(run, state, loop.gradients(run, world, state, batch))


def plain_step(run: RunConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a step of the same network in plain PyTorch."""
    model = DiT(run.network_config(GPT2.size))
    model.reset_parameters(Initializer(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    t = torch.rand(len(tokens))

    def plain() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(run.train.autocast)):
            logits = model(tokens, t)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return plain


@contextmanager
def record_seconds(seconds: list[float], owner: Any, *names: str) -> Generator[None]:
    """Append the seconds of every call of some methods to a list."""
    originals = {name: getattr(owner, name) for name in names}

    def clock(method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            start = time.perf_counter()
            try:
                return method(*args, **keywords)
            finally:
                seconds.append(time.perf_counter() - start)

        return call

    for name, method in originals.items():
        setattr(owner, name, clock(method))
    try:
        yield
    finally:
        for name, method in originals.items():
            setattr(owner, name, method)


def overhead(steps: int, folder: Path, world: World) -> dict[str, float]:
    """Return the time of reports (with TensorBoard), checkpoints and data relative to the steps.

    A `micro` run on the speeches; it saves every 25 steps and reports every 10, more often than
    the preset.
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
        record_seconds(parts["reports"], Report, "training"),
        record_seconds(parts["checkpoints"], Checkpoints, "save", "wait"),
        record_seconds(parts["data"], Loader, "__next__"),
        record_seconds(parts["steps"], loop, "gradients", "update"),
    ):
        fit(
            run,
            folder / "run",
            world,
            quiet=True,
            trackers=lambda start: default_trackers(folder / "run", start),
        )
    steps_seconds = sum(parts["steps"])
    return {name: sum(part) / steps_seconds for name, part in parts.items() if name != "steps"}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--samples", type=int, default=size(4, 1), help="samples of 512 tokens per step"
    )
    parser.add_argument(
        "--rounds", type=int, default=size(9, 1), help="steps to take the median of"
    )
    parser.add_argument("--steps", type=int, default=size(100, 2), help="steps of the micro run")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with open_world("cpu") as world:
        for network in ("small", "tiny"):
            ours, plain = step_times(network, arguments.samples, arguments.rounds, world)
            print(f"{network}: {ours:.3f} s a step, plain {plain:.3f} s, ratio {ours / plain:.3f}")
            figures[f"{network}_step_ratio"] = ours / plain
        with tempfile.TemporaryDirectory() as folder:
            fractions = overhead(arguments.steps, Path(folder), world)
    for name, fraction in fractions.items():
        print(f"micro, {name}: {fraction:.2%} of the time of the steps")
    figures |= {
        "step_ratio": figures["small_step_ratio"],
        "overhead_share": sum(fractions.values()),
    }
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
