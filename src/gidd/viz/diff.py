"""What a correction has changed, for the eye and for `patch`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from gidd.viz.terminal import printable

_CONTEXT = 80
"""Characters of an unchanged line that are shown on either side of a change."""

_STYLES = {"same": "", "old": "red strike", "new": "bold green"}


class Change(NamedTuple):
    """A piece of a text that was replaced."""

    start: int
    old: str
    new: str


class _Segment(NamedTuple):
    kind: Literal["same", "old", "new"]
    text: str


def coloured(original: str, changes: Sequence[Change]) -> Table:
    """The lines that were changed, with their numbers: old in red, new in green."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, segments in _lines(_segments(original, changes)):
        if any(segment.kind != "same" for segment in segments):
            line = Text.assemble(*((text, _STYLES[kind]) for kind, text in _shortened(segments)))
            table.add_row(f"{number} │", line)
    return table


def unified(name: str, original: str, corrected: str) -> str:
    """The change as `patch` reads it."""
    lines = (text.splitlines(keepends=True) for text in (original, corrected))
    found = difflib.unified_diff(*lines, fromfile=f"a/{name}", tofile=f"b/{name}")
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in found
    )


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
    """Lines of the original, by number; a line break that was replaced is shown as a sign."""
    number, following = 1, 1
    line: list[_Segment] = []
    for kind, text in segments:
        if kind != "same":
            if text:
                line.append(_Segment(kind, text.replace("\n", "↵")))
            following += text.count("\n") if kind == "old" else 0
            continue
        first, *others = text.split("\n")
        line.append(_Segment("same", first))
        for other in others:
            yield number, line
            following += 1
            number, line = following, [_Segment("same", other)]
    yield number, line


def _shortened(segments: Sequence[_Segment]) -> Iterator[tuple[str, str]]:
    """Kind and text, safe for a terminal; of long unchanged text only what is near a change."""
    last = len(segments) - 1
    for i, (kind, text) in enumerate(segments):
        if kind == "same":
            head = "" if i == 0 else text[:_CONTEXT]
            tail = "" if i == last else text[-_CONTEXT:]
            if len(text) > len(head) + len(tail) + 3:
                text = f"{head} … {tail}"
        yield kind, printable(text)
