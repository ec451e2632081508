"""Fill the blanks of a text: [MASK] is one token, [MASK:3] are three; all else stays.

Examples:
  gidd infill models/nano "The people of [MASK:4] have a right to [MASK:3]."
  gidd infill models/nano - < letter.txt > filled.txt
  gidd infill models/nano "Peace and [MASK]" --n 5 --step greedy --watch
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from gidd.cli.display import Display, progress, read_input, show_generations
from gidd.pipeline import SamplingOptions


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `gidd infill`."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A folder that `gidd export` wrote, or a name on the Hugging Face hub."""

    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text with its blanks, or - to read it from standard input."""

    n: int = 1
    """Number of ways to fill it."""

    seed: int = 0
    """The same seed gives the same texts."""

    first: int = 0
    """Number of the first text: `--first 5` gives the sixth text of `--n 6` alone."""

    sampling: Annotated[SamplingOptions, tyro.conf.arg(name="")] = field(
        default_factory=SamplingOptions
    )
    display: Annotated[Display, tyro.conf.arg(name="")] = field(default_factory=Display)


def main(arguments: Sequence[str]) -> None:
    """Parse, fill, show."""
    options = tyro.cli(Options, prog="gidd infill", description=__doc__, args=list(arguments))
    text = read_input(sys.stdin.buffer.read(), "-") if options.text == "-" else options.text
    pipe = options.display.open(options.model)
    with progress(options.display, pipe, options.n) as on_step:
        generations = pipe.infill(
            text,
            options.n,
            seed=options.seed,
            first=options.first,
            on_step=on_step,
            watch=options.display.keeps_frames,
            options=options.sampling,
        )
    show_generations(options.display, pipe, generations, title="Blanks filled")
