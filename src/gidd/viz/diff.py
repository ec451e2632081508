"""What a correction has changed, for the eye and for `patch`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from gidd.viz.terminal import printable

_CONTEXT = 80
"""Characters of an unchanged line that are shown on either side of a change."""

_CONTEXT_LINES = 3
"""Unchanged lines of a patch on either side of a change."""

_STYLES = {"same": "", "old": "red strike", "new": "bold green"}
_SIGNS = {"same": "{}", "old": "[-{}-]", "new": "{{+{}+}}"}
"""What tells old from new where there are no colours, as `git diff --word-diff` has it."""


class Change(NamedTuple):
    """A piece of a text that was replaced."""

    start: int
    old: str
    new: str


class _Segment(NamedTuple):
    kind: Literal["same", "old", "new"]
    text: str


def readable(original: str, changes: Sequence[Change], *, colours: bool) -> Table:
    """The lines that were changed, with their numbers: old in red, new in green.

    Args:
        original: The text before.
        changes: What was replaced in it, in order.
        colours: Whether they will be seen; if not, old text is [-so-] and new text {+so+}.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, segments in _lines(_segments(original, changes)):
        if any(segment.kind != "same" for segment in segments):
            line = Text()
            for kind, text in _shortened(segments):
                line.append(text if colours else _SIGNS[kind].format(text), _STYLES[kind])
            table.add_row(f"{number} │", line)
    return table


def unified(name: str, original: str, changes: Sequence[Change]) -> str:
    """The change as `patch` reads it."""
    lines = list(_signed(original, changes))
    near = {
        i
        for k, line in enumerate(lines)
        if line[0] != " "
        for i in range(k - _CONTEXT_LINES, k + _CONTEXT_LINES + 1)
    }
    end = "\t" if " " in name else ""  # else the name would end at the space
    patch = f"--- a/{name}{end}\n+++ b/{name}{end}\n" if near else ""
    old = new = 0  # lines before the hunk
    for in_hunk, run in groupby(enumerate(lines), key=lambda numbered: numbered[0] in near):
        hunk = [line for _, line in run]
        num_old, num_new = (sum(line[0] != sign for line in hunk) for sign in "+-")
        if in_hunk:
            # an empty side is said to be after the line before it
            sides = f"-{old + (num_old > 0)},{num_old} +{new + (num_new > 0)},{num_new}"
            patch += f"@@ {sides} @@\n" + "".join(
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
                for line in hunk
            )
        old, new = old + num_old, new + num_new
    return patch


def _signed(original: str, changes: Sequence[Change]) -> Iterator[str]:
    """All lines as a patch has them: those that stay after " ", old ones after -, new after +."""
    for stays, run in groupby(_blocks(original, changes), key=lambda block: block[0] == block[1]):
        old, new = map("".join, zip(*run, strict=True))
        yield from ((" " if stays else "-") + line for line in _cut(old))
        if not stays:
            yield from ("+" + line for line in _cut(new))


def _blocks(original: str, changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """Old and new text in pieces, cut wherever a line ends in both."""
    old = new = ""
    for kind, text in _segments(original, changes):
        for line in _cut(text):
            old += "" if kind == "new" else line
            new += "" if kind == "old" else line
            if kind != "old" and old.endswith("\n") and new.endswith("\n"):
                yield old, new
                old = new = ""
    yield old, new


def _cut(text: str) -> list[str]:
    """Lines with their ends; a line feed ends one and nothing else, unlike in `splitlines`."""
    return list(io.StringIO(text, newline="\n"))


def _segments(original: str, changes: Sequence[Change]) -> Iterator[_Segment]:
    """Neighbouring changes become one: all that went, then all that came."""
    end, old, new = 0, "", ""
    for change in (*changes, Change(len(original), "", "")):
        between = original[end : change.start]
        if between or change.start == len(original):
            yield from (_Segment("old", old), _Segment("new", new), _Segment("same", between))
            old = new = ""
        old, new = old + change.old, new + change.new
        end = change.start + len(change.old)
    yield from (_Segment("old", old), _Segment("new", new))


def _lines(segments: Iterable[_Segment]) -> Iterator[tuple[int, list[_Segment]]]:
    """Lines of the original, by number, safe for a terminal; replaced line ends become signs."""
    number, following = 1, 1
    line: list[_Segment] = []
    for kind, text in segments:
        if kind != "same":
            if text:
                signs = text.replace("\r", "␍").replace("\n", "↵")
                line.append(_Segment(kind, printable(signs)))
            following += text.count("\n") if kind == "old" else 0
            continue
        first, *others = printable(text).split("\n")
        line.append(_Segment("same", first))
        for other in others:
            yield number, line
            following += 1
            number, line = following, [_Segment("same", other)]
    yield number, line


def _shortened(segments: Sequence[_Segment]) -> Iterator[_Segment]:
    """The same, but of long unchanged text only what is near a change."""
    last = len(segments) - 1
    for i, (kind, text) in enumerate(segments):
        if kind == "same":
            head = "" if i == 0 else text[:_CONTEXT]
            tail = "" if i == last else text[-_CONTEXT:]
            if len(text) > len(head) + len(tail) + 3:
                text = f"{head} … {tail}"
        yield _Segment(kind, text)
