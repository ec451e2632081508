"""Fill the blanks of a text: [MASK] is one token, [MASK:3] are three; all else stays.

Examples:
  gidd infill models/nano "The people of[MASK:4] have a right to[MASK:3]."
  gidd infill models/nano - < letter.txt > filled.txt
  gidd infill models/nano "Peace and[MASK]" --num-samples 5 --step threshold --live
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gidd.cli.model_options import TextCommandOptions, progress, read_input, show_generations


@dataclass(frozen=True, kw_only=True)
class InfillOptions(TextCommandOptions):
    """InfillOptions of `gidd infill`."""

    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text with its blanks, or - to read it from standard input."""


def main(arguments: Sequence[str]) -> None:
    """Parse, fill, show."""
    options = tyro.cli(InfillOptions, prog="gidd infill", description=__doc__, args=list(arguments))
    text = read_input(sys.stdin.buffer.read(), "-") if options.text == "-" else options.text
    pipe = options.display.open(options.model)
    with progress(options.display, pipe, options.num_samples) as on_step:
        generations = pipe.infill(
            text,
            options.num_samples,
            seed=options.seed,
            start_index=options.start_index,
            on_step=on_step,
            record_frames=options.display.record_frames,
            options=options.sampling,
        )
    show_generations(options.display, pipe, generations, title="Blanks filled")
