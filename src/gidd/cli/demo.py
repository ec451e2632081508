"""See a small model write, fill blanks and correct itself, without a network connection.

Takes less than a minute on a laptop. The model is `nano` of the distribution gidd-nano.

Examples:
  gidd demo
  gidd demo --model models/mine --prompt "The city"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gidd.cli.model_options import parse_checked, show_steps
from gidd.cli.output import CliConsole, plain
from gidd.common.config.allowed import SEED

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline

_LENGTH, _STEPS, _CORRECTIONS = 64, 64, 16
_NEXT = {
    "sample {} --live": "watch a text form",
    'infill {} "The[MASK:2] of the[MASK:2]."': "fill blanks",
    "serve {}": "try it on a page (gidd[serve])",
    "train nano": "train one yourself",
}


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `gidd demo`."""

    model: str = "nano"
    """Folder or name of a model that was trained with uniform noise."""
    prompt: str = "Scientists have found that"
    """Beginning of the text."""
    infill: str = "The history of[MASK:4] is an example of[MASK:3]."
    """Text with blanks."""
    seed: Annotated[int, SEED] = 0
    """Another number gives another text."""


def main(arguments: Sequence[str]) -> None:
    """Parse, then generate, self-correct and infill."""
    options = parse_checked(DemoOptions, "gidd demo", __doc__, arguments)
    import gidd

    console = CliConsole(highlight=False)
    pipe = gidd.from_pretrained(options.model)
    pipe.require_visible_scores("the demo")
    show_correction(console, pipe, options)
    console.print("\n3. It fills blanks, looking at both sides:\n", style="bold")
    with show_steps("infilling", pipe, 1, live=console.is_terminal) as on_step:
        filled = pipe.infill(options.infill, seed=options.seed, steps=16, on_step=on_step)
    console.print(plain(options.infill), style="dim")
    console.print(plain(filled[0].text), "\n")
    console.print("Go on:")
    for command, summary in _NEXT.items():
        console.print(plain(f"  gidd {command.format(options.model):42} {summary}"))


def show_correction(console: CliConsole, pipe: Pipeline, options: DemoOptions) -> None:
    """Generate a text, and let the model replace its own mistakes."""
    from gidd.viz.diff import TextChange, readable

    console.print("1. The model turns noise into text, all places at once:\n", style="bold")
    with show_steps("sampling", pipe, 1, live=console.is_terminal) as on_step:
        (sample,) = pipe.generate(
            length=min(_LENGTH, pipe.context),
            prompt=options.prompt,
            steps=_STEPS,
            temperature=0.8,
            top_p=0.95,
            seed=options.seed,
            on_step=on_step,
        )
    console.print(plain(sample.text))
    console.print("\n2. It reads the text again and replaces what it doubts:\n", style="bold")
    with show_steps("correcting", pipe, 1, live=console.is_terminal) as on_step:
        protected = [(0, len(options.prompt))]
        after = pipe.self_correct(
            sample.text,
            protected=protected,
            score="gain",
            temperature=0.1,
            forward_passes=_CORRECTIONS,
            seed=options.seed,
            on_step=on_step,
        )
    changes = [TextChange(edit.start, edit.old, edit.new) for edit in after.replacements]
    colours = console.color_system is not None and not console.no_color
    console.print(readable(after.original, changes, colours=colours))
    console.print("\n", plain(after.text), sep="")
    before, now = after.self_accuracy
    console.print(
        f"\nTokens that are the model's own first choice: {before:.0%} before, {now:.0%} after "
        f"{after.forward_passes} forward passes.",
        style="dim",
    )
