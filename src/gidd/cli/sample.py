"""Write texts with a model, from nothing or between a prompt and a suffix.

Examples:
  gidd sample models/nano
  gidd sample models/nano --prompt "My fellow citizens" --num-samples 4 --steps 64 --temperature 0.8
  gidd sample models/nano --live
  gidd sample models/nano --html sample.html --correction.calls 64
  gidd sample models/nano --num-samples 100 --jsonl > samples.jsonl
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from gidd.cli.model_options import TextCommandOptions, progress, show_generations


@dataclass(frozen=True, kw_only=True)
class SampleOptions(TextCommandOptions):
    """SampleOptions of `gidd sample`."""

    prompt: str = ""
    """What every text begins with."""

    suffix: str = ""
    """What every text ends with. Without it a text ends where the model ends it."""

    length: int | None = None
    """Tokens of a text, prompt and suffix included; by default the model's whole context."""


def main(arguments: Sequence[str]) -> None:
    """Parse, sample, show."""
    options = tyro.cli(SampleOptions, prog="gidd sample", description=__doc__, args=list(arguments))
    pipe = options.display.open(options.model)
    with progress(options.display, pipe, options.num_samples) as on_step:
        generations = pipe.generate(
            options.num_samples,
            prompt=options.prompt,
            suffix=options.suffix,
            length=options.length,
            seed=options.seed,
            start_index=options.start_index,
            on_step=on_step,
            record_frames=options.display.record_frames,
            options=options.sampling,
        )
    title = f"{options.prompt} …" if options.prompt else "Text from noise"
    show_generations(options.display, pipe, generations, title=title)
