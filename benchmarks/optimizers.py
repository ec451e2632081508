"""Optimizers on one preset: validation NELBO after a number of steps, and time per step.

    python benchmarks/optimizers.py --json

Each run has its own folder below --out, where the same command resumes it.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

from script import parser_of, size

from gidd.common.config.components import component
from gidd.runs.data import ensure_prepared
from gidd.runs.fit import fit
from gidd.runs.presets import PRESETS
from gidd.training.world import open_world


def measure(arguments: argparse.Namespace, name: str, rate: float, seed: int) -> dict[str, object]:
    """Train once; return the last evaluation, and the median time of a step."""
    preset = PRESETS[arguments.preset]
    run = replace(
        preset,
        optimizer=component("optimizer", name),
        data=replace(preset.data, folder=arguments.data, sources=()),
        optim=replace(preset.optim, learning_rate=rate, warmup=arguments.steps // 20),
        train=replace(
            preset.train,
            steps=arguments.steps,
            seed=seed,
            report_every=max(1, arguments.steps // 100),
            evaluate_every=max(1, arguments.steps // 10),
            save_every=max(1, arguments.steps // 10),
            generate_samples=0,
            evaluate_samples=size(preset.train.evaluate_samples, 2),
            global_batch=size(preset.train.global_batch, 2),
        ),
    )
    out = arguments.out / f"{name}-{rate:g}-{seed}"
    with open_world("cpu") as world:
        fit(run, out, world, quiet=True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["kind"] == "training"]
    last = [line for line in lines if line["kind"] != "training"][-1]
    tokens = run.train.global_batch * run.data.length
    seconds = [tokens / line["wall"]["tokens_per_second"] for line in reports if "wall" in line]
    return {
        "optimizer": name,
        "learning_rate": rate,
        "seed": seed,
        "steps": last["step"],
        "nelbo": last["nelbo"],
        "nelbo_se": last.get("nelbo_se"),
        "train_loss": reports[-1]["loss"],
        "seconds_per_step": median(seconds) if seconds else None,
    }


def main() -> None:
    """Parse options, train one run after the other, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--preset", default="nano", choices=PRESETS)
    parser.add_argument("--source", default="sotu")
    parser.add_argument("--data", type=Path, help="prepared folder; default: prepares --source")
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3], help="learning rates")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=size(1000, 2))
    parser.add_argument("--out", type=Path, default=Path("runs/optimizers"))
    arguments = parser.parse_args()
    choices = [
        (n, r, s) for n in arguments.optimizers for r in arguments.rates for s in arguments.seeds
    ]
    if arguments.data is None:
        data = replace(PRESETS[arguments.preset].data, sources=(arguments.source,))
        with open_world("cpu") as world:
            arguments.data = ensure_prepared(data, arguments.out, world, quiet=True)
    rows = [measure(arguments, *choice) for choice in choices]
    print(*rows, sep="\n")
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
