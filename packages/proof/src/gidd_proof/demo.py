"""Proofread a page in the terminal, with the packaged model and without a network connection.

The page is part of a message to Congress that the model was not trained on, with typos made by a
program. It takes less than a minute on a laptop.

Example: gidd demo
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple, final

from gidd.cli.correct_progress import CorrectProgress
from gidd.cli.correct_run import correct_part_of, estimate_error_rate
from gidd.cli.correct_view import count, percent
from gidd.cli.demo_page import CLEAN_PAGE, PAGE_TITLE, TYPED_PAGE
from gidd.proofreading.edits import TextEdit, apply_edits
from gidd.proofreading.parts import parts_of
from rich.console import Group
from rich.live import Live
from rich.text import Text

from gidd.cli.console import CliConsole
from gidd.cli.correct import PACKAGED_MODEL
from gidd.cli.model_options import Flat, ModelOptions
from gidd.cli.parsing import parse

if TYPE_CHECKING:
    from gidd.proofreading.noise_level import NoiseLevel

_ShowPage = Callable[[Sequence[TextEdit], int], None]
"""Called with the edits so far, and the end of the corrected text."""

_PART = 300
"""Characters that are corrected at a time, so that something happens every second or two."""

_NEXT = """\
Try it on your own text:
  gidd correct letter.txt                     show what it would change
  gidd correct letter.txt --interactive       decide about each place yourself
  gidd correct letter.txt --in-place          change the file
  gidd train proof                            train such a model"""


@final
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `gidd demo`."""

    model: str = PACKAGED_MODEL
    """Model to proofread with; `proof` is part of the package."""

    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)


class WordCounts(NamedTuple):
    """What a correction did to the words of a text whose right version is known."""

    wrong: int
    fixed: int
    spoiled: int


def main(arguments: Sequence[str]) -> None:
    """Parse, proofread the page and report."""
    options = parse(DemoOptions, arguments, prog="gidd demo", description=__doc__)
    console = CliConsole(highlight=False)
    typos = list(_typos())
    console.print(
        Text(f"A part of {PAGE_TITLE}, with typos in {len(typos)} words (marked):\n", "bold")
    )
    console.print(_page(TYPED_PAGE, typos, colours=_has_colours(console)))
    start = time.perf_counter()
    pipe = options.runtime.load(options.model)
    corrector = pipe.corrector()
    progress = CorrectProgress(1, len(TYPED_PAGE))
    console.print(Text("\n1. How much of it is wrong? The model reads it at several noise levels."))
    with progress.estimating() as report:
        noise = estimate_error_rate(corrector, TYPED_PAGE, report)
    error_rate = 0.0 if noise is None else noise.error_rate
    console.print(f"   Estimated: {noise} of the characters. In truth: {_truth():.1%}.")
    console.print("\n2. Which words are wrong, and what is right there?\n")
    edits: list[TextEdit] = []
    calls = 0 if noise is None else noise.calls
    with _live_page(console) as show:
        for part in parts_of(TYPED_PAGE, _PART):
            judged = correct_part_of(corrector, TYPED_PAGE, part, error_rate)
            edits += judged.edits
            calls += judged.calls
            show(edits, part.stop)
    console.print(_report(edits, noise, calls, time.perf_counter() - start))
    console.print(Text(f"\n{_NEXT}"))


def _report(
    edits: Sequence[TextEdit], noise: NoiseLevel | None, calls: int, seconds: float
) -> Group:
    counts = count_words(CLEAN_PAGE, TYPED_PAGE, apply_edits(TYPED_PAGE, edits))
    left = sum(not edit.is_change for edit in edits)
    return Group(
        Text(
            f"\n{counts.fixed} of {counts.wrong} wrong words fixed, "
            f"{count(counts.spoiled, 'good word')} changed, {count(left, 'doubtful place')} left "
            f"for you, {calls:,} forward passes, {seconds:.0f} s.",
            "bold",
        ),
        Text(
            "\nThe model predicts every character from the characters around it. Words that are "
            "unlikely in their context were compared with similar words. A percentage is the "
            "probability that a change is right. Nothing was sent over a network."
        ),
    )


def count_words(clean: str, before: str, after: str) -> WordCounts:
    """Return how many words were wrong, and how many of them are right after a correction.

    `before` has a word for each word of `clean`; `after` may have more or fewer.
    """
    right = clean.split()
    was_right = [a == b for a, b in zip(right, before.split(), strict=True)]
    is_right = [False] * len(right)
    blocks = SequenceMatcher(None, right, after.split(), autojunk=False).get_matching_blocks()
    for start, _, size in blocks:
        is_right[start : start + size] = [True] * size
    pairs = list(zip(was_right, is_right, strict=True))
    return WordCounts(
        was_right.count(False), pairs.count((False, True)), pairs.count((True, False))
    )


def _truth() -> float:
    """Return the fraction of characters that are wrong on the page."""
    from gidd.proofreading.alignment import edit_distance

    words = zip(CLEAN_PAGE.split(), TYPED_PAGE.split(), strict=True)
    return sum(edit_distance(right, typed) for right, typed in words) / len(TYPED_PAGE)


def _typos() -> Iterator[tuple[int, str]]:
    """Yield start and text of the wrong words of the page."""
    place = 0
    for right, typed in zip(CLEAN_PAGE.split(), TYPED_PAGE.split(), strict=True):
        place = TYPED_PAGE.index(typed, place)
        if typed != right:
            yield place, typed
        place += len(typed)


def _page(text: str, marked: Sequence[tuple[int, str]], *, colours: bool) -> Text:
    page, last = Text(), 0
    for start, word in marked:
        page.append(text[last:start])
        page.append(word if colours else f"[-{word}-]", "red underline")
        last = start + len(word)
    return page.append(text[last:])


def _corrected(edits: Sequence[TextEdit], stop: int, *, colours: bool) -> Text:
    """Return the page with its changes; what is still to be corrected is dim."""
    page, last = Text(), 0
    for edit in edits:
        page.append(TYPED_PAGE[last : edit.start])
        if edit.is_change:
            page.append(edit.old if colours else f"[-{edit.old}-]", "red strike")
            page.append(edit.new if colours else f"{{+{edit.new}+}}", "bold green")
            page.append(f" {percent(edit.confidence)}", "dim")
        else:
            page.append(edit.old if colours else f"[?{edit.old}?]", "yellow underline")
        last = edit.stop
    return page.append(TYPED_PAGE[last:stop]).append(TYPED_PAGE[stop:], "dim")


@contextmanager
def _live_page(console: CliConsole) -> Generator[_ShowPage]:
    """Yield what draws the page as far as it is corrected; without a terminal, once at the end."""
    colours = _has_colours(console)
    if not console.is_terminal:
        drawn = [_corrected([], 0, colours=colours)]

        def keep(edits: Sequence[TextEdit], stop: int) -> None:
            drawn[0] = _corrected(edits, stop, colours=colours)

        yield keep
        console.print(drawn[0])
        return
    with Live(_corrected([], 0, colours=colours), console=console, auto_refresh=False) as live:

        def draw(edits: Sequence[TextEdit], stop: int) -> None:
            live.update(_corrected(edits, stop, colours=colours), refresh=True)

        yield draw


def _has_colours(console: CliConsole) -> bool:
    return console.color_system is not None and not console.no_color
