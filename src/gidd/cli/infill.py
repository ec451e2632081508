"""Fill the blanks of a text: [MASK] is one token, [MASK:3] three; the rest is kept.

Examples:
  gidd infill models/nano "The people of[MASK:4] have a right to[MASK:3]."
  gidd infill models/nano - < letter.txt > filled.txt
  gidd infill models/nano "Peace and[MASK]" --num-samples 5 --sampler threshold --live
  gidd infill models/nano "The answer is[MASK]." --choices " yes" " no"
  gidd infill models/nano "Sue has [MASK:2] cats." --pattern "[2-9]0?|ten"
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gidd.cli.model_options import TextCommandOptions, parse_checked, show_steps
from gidd.cli.output import decode_utf8, show_samples
from gidd.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InfillOptions(TextCommandOptions):
    """Options of `gidd infill`."""

    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """Text with blanks, or - to read it from standard input."""
    choices: tuple[str, ...] = ()
    """Texts of which the blank becomes one, each of the blank's number of tokens."""
    pattern: str = ""
    """Regular expression that the blank matches."""


def main(arguments: Sequence[str]) -> None:
    """Parse, infill, show."""
    options = parse_checked(InfillOptions, "gidd infill", __doc__, arguments)
    text = options.text
    if text == "-":
        text = decode_utf8(sys.stdin.buffer.read(), "standard input")
    if "[MASK" not in text:
        raise ConfigError("TEXT must have at least one blank, such as [MASK] or [MASK:3].")
    pipe = options.runtime.load(options.model)
    with show_steps("infilling", pipe, options.num_samples, live=options.output.live) as on_step:
        choices = options.choices or {}
        generations = pipe.infill(
            text, choices=choices, pattern=options.pattern, on_step=on_step, **options.settings
        )
    show_samples(options, pipe, generations, "Blanks filled")
