"""Proofread a page in the terminal, with the packaged model and without a network connection.

The page is a short modern text with typos. It takes less than a minute on a laptop.

Example: gidd-proof demo
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Final, NamedTuple

import tyro

from gidd.cli import CliConsole, parse, plain, show_changes, show_counts

CLEAN_PAGE: Final = (
    "The new library opened on Saturday morning. More than three hundred people came, and many "
    "of them had waited years for it.\n"
    "\n"
    "The building has two floors. Downstairs there are books for children, a small kitchen and a "
    "room where people can work together. Upstairs it is quiet: long tables, good light and a "
    "window with a view of the river. Visitors can borrow up to twenty books, and everything can "
    "be renewed on the website.\n"
    "\n"
    "The city paid for most of the construction. A group of volunteers collected the rest, and "
    "they will also run the language courses that begin in October. Anyone who wants to help is "
    "welcome to write to hello@library.example."
)
"""The page without typos."""

TYPED_PAGE: Final = (
    "The new libary opened on Saturday morning. More than three hundred poeple came, and many "
    "of them had waited yeas for it.\n"
    "\n"
    "The bulding has two floors. Downstairs there are books for childern, a small kitchen and a "
    "room where people can work togehter. Upstairs it is quiet: long tables, good light and a "
    "windwo with a view of the river. Visitors can borow up to twenty books, and everthing can "
    "be renewed on the website.\n"
    "\n"
    "The city paid for most of the constuction. A group of volunters collected the rest, and "
    "they will also run the langauge courses that begin in October. Anyone who wants to help is "
    "wellcome to write to hello@library.example."
)
"""The page with typos."""

_NEXT = """\
Try it on your own text:
  gidd-proof letter.txt                     show what it would change
  gidd-proof letter.txt --interactive       decide about each place yourself
  gidd-proof letter.txt --in-place          change the file"""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `gidd-proof demo`."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters; by default the packaged English model."""


class WordCounts(NamedTuple):
    """Words of a text that were wrong, fixed and spoiled by a correction."""

    wrong: int
    fixed: int
    spoiled: int


def main(arguments: Sequence[str]) -> None:
    """Parse, proofread the page and report."""
    options = parse(DemoOptions, arguments, prog="gidd-proof demo", description=__doc__)
    console = CliConsole(highlight=False)
    console.print(plain(TYPED_PAGE), "\n")
    import gidd_proof

    start = time.perf_counter()
    proofreader = gidd_proof.load(options.model)
    with show_counts("proofreading") as on_progress:
        correction = proofreader.correct(TYPED_PAGE, on_progress=on_progress)
    show_changes("Changes, with the confidence in each:", correction)
    counts = count_words(CLEAN_PAGE, TYPED_PAGE, correction.text)
    console.print(
        f"\n{counts.fixed} of {counts.wrong} wrong words fixed, {counts.spoiled} good words "
        f"changed, {len(correction.suggestions)} doubtful places left for you; estimated error "
        f"rate {correction.noise_level}; {correction.forward_passes:,} forward passes, "
        f"{time.perf_counter() - start:.0f} s.\n"
    )
    console.print(_NEXT)


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
