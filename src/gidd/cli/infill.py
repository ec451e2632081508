"""Fill the blanks of a text: [MASK] is one token, [MASK:3] three; the rest is kept.

Examples:
  gidd infill models/nano "The people of[MASK:4] have a right to[MASK:3]."
  gidd infill models/nano - < letter.txt > filled.txt
  gidd infill models/nano "Peace and[MASK]" --num-samples 5 --sampler threshold --live
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gidd.cli.model_options import TextCommandOptions, parse_options
from gidd.cli.output import decode_utf8, show_samples


@dataclass(frozen=True, kw_only=True)
class InfillOptions(TextCommandOptions):
    """Options of `gidd infill`."""

    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """Text with blanks, or - to read it from standard input."""


def main(arguments: Sequence[str]) -> None:
    """Parse, infill, show."""
    options = parse_options(InfillOptions, "gidd infill", __doc__, arguments)
    text = options.text
    if text == "-":
        text = decode_utf8(sys.stdin.buffer.read(), "standard input")
    pipe = options.runtime.load(options.model)
    with options.progress("infilling", pipe) as on_step:
        generations = pipe.infill(text, on_step=on_step, **options.settings)
    show_samples(options, pipe, generations, "Blanks filled")
