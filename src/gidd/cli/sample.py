"""Generate text with a model, optionally between a prompt and a suffix.

Examples:
  gidd sample models/nano
  gidd sample models/nano --prompt "My fellow citizens" --num-samples 4 --steps 64 --temperature 0.8
  gidd sample models/nano --live
  gidd sample models/nano --html sample.html --correction.calls 64
  gidd sample models/nano --num-samples 100 --jsonl > samples.jsonl
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from gidd.cli.model_options import TextCommandOptions, parse_options
from gidd.cli.output import sample_and_show
from gidd.common.allowed import field_problems, integer, optional


@dataclass(frozen=True, kw_only=True)
class SampleOptions(TextCommandOptions):
    """Options of `gidd sample`."""

    prompt: str = ""
    """Text that every sample starts with."""

    suffix: str = ""
    """Text that every sample ends with. Without it, a sample ends at the end-of-text token."""

    length: Annotated[int | None, tyro.conf.DisallowNone] = None
    """Length in tokens, including prompt and suffix; None is the model's context, at most 2048."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from super().problems()
        yield from field_problems(self, length=optional(integer(1)))


def main(arguments: Sequence[str]) -> None:
    """Parse, sample, show."""
    options = parse_options(SampleOptions, "gidd sample", __doc__, arguments)
    pipe = options.runtime.load(options.model)
    generate = partial(
        pipe.generate, prompt=options.prompt, suffix=options.suffix, length=options.length
    )
    title = f"{options.prompt} …" if options.prompt else "Text from noise"
    sample_and_show(options, pipe, generate, action="sampling", title=title)
