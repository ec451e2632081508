"""Compute the likelihood of a text, the confidence in its tokens, and how much of it is wrong.

- NELBO is an upper bound on -log p(text) in nats, estimated with a standard error.
- Perplexity and bits per byte follow from it; `gidd eval ppl` measures a corpus.
- A model that was trained with uniform noise (p_uniform > 0) also estimates the fraction of wrong
  tokens, with a 95% interval, and a terminal shows the text with unlikely tokens coloured.

Examples:
  gidd score models/nano letter.txt
  gidd score models/nano letter.txt speech.txt
  gidd score models/nano letter.txt --max-se 0.01  # nats per token
  gidd score models/nano --text "We hold these truths to be self-evident." --jsonl
  gidd score models/nano --text " 5" --prompt "2 + 3 ="  # -log p(text | prompt)
  gidd score models/nano - < letter.txt
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table
from rich.text import Text

from gidd.cli.correct import read_texts
from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_checked
from gidd.cli.output import CliConsole, plain, print_json
from gidd.common.messages import show_counts
from gidd.common.terminal import printable
from gidd.errors import DataError
from gidd.pipeline.options import LikelihoodOptions

if TYPE_CHECKING:
    from gidd.pipeline.results import Scores

_STYLES = ((0.01, "bold white on red"), (0.1, "black on yellow"))
"""Confidence below which a token has a style."""

_COLUMNS = ("NELBO", "per token", "perplexity", "bits per byte", "error rate")
"""Numbers in the table of several texts."""

_FIELDS = (  # fields of the JSON output
    *("text", "tokens", "confidence", "nelbo", "standard_error", "reconstruction", "prior"),
    *("noise_level", "forward_passes", "manifest"),
)
_NUMBERS_WIDTH = 170  # characters of a line besides the name of a file


@dataclass(frozen=True, kw_only=True)
class ScoreCommand:
    """Options of `gidd score`."""

    model: ModelName
    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, or - for standard input."""
    text: str | None = None
    """The text itself, instead of a file."""
    prompt: str = ""
    """A condition: likelihoods are of each text given this prompt."""
    likelihood: Flat[LikelihoodOptions] = field(
        default_factory=lambda: LikelihoodOptions(nodes=8, repeats=6)
    )
    jsonl: bool = False
    """Print one JSON object per text, with tokens, confidence and settings."""
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)


def main(arguments: Sequence[str]) -> None:
    """Parse, score, show."""
    options = parse_checked(ScoreCommand, "gidd score", __doc__, arguments)
    sources = read_texts(options.files, options.text)
    for source in sources:
        if not source.text:
            raise DataError(f"{source.name} must not be empty.")
    pipe = options.runtime.load(options.model)
    for source in sources:
        pipe.encode(source.text, source.name)  # an error names the file
    with show_counts("scoring") as on_forward_passes:
        texts = [source.text for source in sources]
        scores = pipe.score(
            texts,
            prompt=options.prompt,
            options=options.likelihood,
            on_forward_passes=on_forward_passes,
        )
    names = [source.name for source in sources]
    if options.jsonl:
        for name, score in zip(names, scores, strict=True):
            values = {key: getattr(score, key) for key in _FIELDS}
            if score.noise_level is not None:
                values["noise_level"] = score.noise_level._asdict()
            print_json(file=name, **values)
        return
    console = CliConsole(highlight=False)
    if len(scores) > 1:
        # a narrow terminal breaks lines; names and numbers must not be cut
        console.width = max(console.width, max(map(len, names)) + _NUMBERS_WIDTH)
        console.print(_table(names, scores))
        return
    (score,) = scores
    if score.confidence is not None and console.color_system and not console.no_color:
        shown = Text()
        for text, p in zip(pipe.decoder(score.tokens), score.confidence, strict=True):
            style = next((style for limit, style in _STYLES if p < limit), "")
            shown.append(printable(text), style)
        console.print(shown, soft_wrap=True)
        legend = (Text(f"below {limit:.0%}", style) for limit, style in _STYLES)
        console.print(Text("\nconfidence: ") + Text("  ").join(legend) + Text("\n"))
    for label, value in _lines(score).items():
        console.print(f"{label:15} {value}")


def _lines(score: Scores) -> dict[str, str]:
    nelbo, error, tokens = score.nelbo, score.standard_error, len(score.tokens)
    perplexity = score.perplexity
    per_byte = len(score.text.encode()) * math.log(2)
    noise = score.noise_level
    return {
        "NELBO": f"{nelbo:.2f} ± {error:.2f} nats",
        "per token": f"{nelbo / tokens:.4f} ± {error / tokens:.4f} nats, {tokens:,} tokens",
        "perplexity": f"{perplexity:.2f} ± {perplexity * error / tokens:.2f}",
        "bits per byte": f"{nelbo / per_byte:.4f} ± {error / per_byte:.4f}",
        **({} if noise is None else {"error rate": f"{noise}, estimated"}),
        "reconstruction": f"{score.reconstruction:.4f} nats of the NELBO",
        "prior": f"{score.prior:.4f} nats of the NELBO",
        "forward passes": f"{score.forward_passes:,}",
    }


def _table(names: Sequence[str], scores: Sequence[Scores]) -> Table:
    lines = [_lines(score) for score in scores]
    shown = [label for label in _COLUMNS if any(label in line for line in lines)]
    table = Table(box=None, pad_edge=False)
    for label in ("file", *shown):
        table.add_column(label, no_wrap=True)
    for name, line in zip(names, lines, strict=True):
        table.add_row(*map(plain, (name, *(line.get(label, "unknown") for label in shown))))
    return table
