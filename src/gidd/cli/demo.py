"""See a small model write, fill blanks and correct itself, without a network connection.

Takes less than a minute on a laptop. The model is `nano` of the distribution gidd-nano.

Examples:
  gidd demo
  gidd demo --model models/mine --prompt "The city was"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from gidd.cli.model_options import parse_checked, show_steps
from gidd.cli.output import CliConsole, plain
from gidd.common.config.allowed import SEED
from gidd.pipeline.options import SelfCorrectionOptions

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline
    from gidd.viz.diff import TextChange

_LENGTH, _CORRECTIONS = 256, 32
_NEXT = {
    "sample {} --live": "watch a text form",
    'infill {} "The[MASK] was[MASK:2]."': "fill blanks",
    "serve {}": "try it on a page (gidd[serve])",
    "train nano": "train one yourself",
}


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `gidd demo`."""

    model: str = "nano"
    """Folder or name of a model that was trained with uniform noise."""
    prompt: str | None = None
    """Beginning of the text; by default one that the model folder has."""
    infill: str | None = None
    """Text with blanks; by default one that the model folder has."""
    correct: str | None = None
    """Text with mistakes; by default one that the model folder has."""
    seed: Annotated[int, SEED] = 0
    """Another number gives another text."""


def main(arguments: Sequence[str]) -> None:
    """Parse, then generate, self-correct, correct and infill."""
    options = parse_checked(DemoOptions, "gidd demo", __doc__, arguments)
    import gidd

    console = CliConsole(highlight=False)
    pipe = gidd.from_pretrained(options.model)
    pipe.require_visible_scores("the demo")
    show_sample(console, pipe, options)
    show_correction(console, pipe, options.correct or pipe.examples.mistakes)
    text = options.infill or pipe.examples.blanks
    console.print("\n4. It fills blanks, looking at both sides:\n", style="bold")
    with show_steps("infilling", pipe, 1, live=console.is_terminal) as on_step:
        (filled,) = pipe.infill(text, seed=options.seed, on_step=on_step)
    console.print(plain(text), style="dim")
    console.print(plain(filled.text), "\n")
    console.print("Go on:")
    for command, summary in _NEXT.items():
        console.print(plain(f"  gidd {command.format(options.model):42} {summary}"))


def show_sample(console: CliConsole, pipe: Pipeline, options: DemoOptions) -> None:
    """Generate a text, and let the model replace its own mistakes."""
    from gidd.viz.diff import TextChange

    sampling = replace(pipe.sampling, self_correction=SelfCorrectionOptions(forward_passes=0))
    console.print("1. The model turns noise into text, all places at once:\n", style="bold")
    with show_steps("sampling", pipe, 1, live=console.is_terminal) as on_step:
        (sample,) = pipe.generate(
            options.prompt or pipe.examples.prompt,
            length=min(_LENGTH, pipe.context),
            seed=options.seed,
            options=sampling,
            on_step=on_step,
        )
    console.print(plain(sample.text))
    console.print("\n2. It reads the text again and replaces what it doubts:\n", style="bold")
    with show_steps("correcting", pipe, 1, live=console.is_terminal) as on_step:
        after = pipe.self_correct(
            sample,
            score="gain",
            forward_passes=_CORRECTIONS,
            seed=options.seed,
            on_step=on_step,
        )
    changes = [TextChange(edit.start, edit.old, edit.new) for edit in after.replacements]
    print_changes(console, after.original, changes)
    console.print("\n", plain(after.text), sep="")
    before, now = after.self_accuracy
    console.print(
        f"\nTokens that are the model's own first choice: {before:.0%} before, {now:.0%} after "
        f"{after.forward_passes} forward passes.",
        style="dim",
    )


def show_correction(console: CliConsole, pipe: Pipeline, text: str) -> None:
    """Correct a text with mistakes."""
    from gidd.viz.diff import TextChange

    console.print("\n3. It corrects a text of somebody else:\n", style="bold")
    corrected = pipe.correct(text)
    changes = [TextChange(edit.start, edit.old, edit.new) for edit in corrected.changes]
    print_changes(console, text, changes)
    console.print("\n", plain(corrected.text), sep="")
    if not changes:
        console.print("\nIt has found no mistake.", style="dim")


def print_changes(console: CliConsole, text: str, changes: Sequence[TextChange]) -> None:
    """Print the changed lines of a text."""
    from gidd.viz.diff import readable

    colours = console.color_system is not None and not console.no_color
    console.print(readable(text, changes, colours=colours))
