"""Fill the blanks of a text: [MASK] is one token, [MASK:3] are three; all else stays.

Examples:
  gidd infill models/nano "The people of[MASK:4] have a right to[MASK:3]."
  gidd infill models/nano - < letter.txt > filled.txt
  gidd infill models/nano "Peace and[MASK]" --n 5 --step threshold --watch
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gidd.cli.model_options import Writing, progress, read_input, show_generations


@dataclass(frozen=True, kw_only=True)
class Options(Writing):
    """Options of `gidd infill`."""

    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text with its blanks, or - to read it from standard input."""


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
