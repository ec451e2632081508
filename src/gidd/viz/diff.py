"""Show the changes of a correction: to read in a terminal, and as a patch."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from gidd.common.terminal import printable

_CONTEXT = 80
"""Characters of an unchanged line that are shown on either side of a change."""

_STYLES = {"same": "", "old": "red strike", "new": "bold green"}
_MARKS = {"same": "{}", "old": "[-{}-]", "new": "{{+{}+}}"}
"""Mark old and new text without colours, like `git diff --word-diff`."""


class TextChange(NamedTuple):
    """A part of a text that was replaced."""

    start: int
    old: str
    new: str


class _Segment(NamedTuple):
    kind: Literal["same", "old", "new"]
    text: str


def readable(original: str, changes: Sequence[TextChange], *, colours: bool) -> Table:
    """Return the changed lines with their numbers, given the replaced parts in order.

    Old text is red and new text green or, without colours, [-marked-] and {+marked+}.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, segments in _lines(_segments(original, changes)):
        if any(segment.kind != "same" for segment in segments):
            line = Text()
            for kind, text in _shortened(segments):
                line.append(text if colours else _MARKS[kind].format(text), _STYLES[kind])
            table.add_row(f"{number} │", line)
    return table


def unified(name: str, original: str, corrected: str) -> str:
    """Return the change of a file as a unified diff, for `patch` and `git apply`."""
    # only a line feed ends a line, unlike in `splitlines`
    old, new = (list(io.StringIO(text, newline="\n")) for text in (original, corrected))
    tab = "\t" if " " in name else ""  # without it, the name would end at the space
    lines = difflib.unified_diff(old, new, f"a/{name}{tab}", f"b/{name}{tab}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _segments(original: str, changes: Sequence[TextChange]) -> Iterator[_Segment]:
    """Merge adjacent changes: all old text, then all new text."""
    end, old, new = 0, "", ""
    for change in (*changes, TextChange(len(original), "", "")):
        between = original[end : change.start]
        if between or change.start == len(original):
            yield from (_Segment("old", old), _Segment("new", new), _Segment("same", between))
            old = new = ""
        old, new = old + change.old, new + change.new
        end = change.start + len(change.old)
    yield from (_Segment("old", old), _Segment("new", new))


def _lines(segments: Iterable[_Segment]) -> Iterator[tuple[int, list[_Segment]]]:
    """Yield the numbered lines of the original, safe to print; replaced line ends become signs."""
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
    """Shorten unchanged text to what is near a change."""
    last = len(segments) - 1
    for i, (kind, text) in enumerate(segments):
        if kind == "same":
            head = "" if i == 0 else text[:_CONTEXT]
            tail = "" if i == last else text[-_CONTEXT:]
            if len(text) > len(head) + len(tail) + 3:
                text = f"{head} … {tail}"
        yield _Segment(kind, text)
