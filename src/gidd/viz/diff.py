"""Show the changes of a correction: to read in a terminal, and as a patch."""

import difflib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from gidd.common.terminal import printable

_CONTEXT = 80  # characters of an unchanged line that are shown on either side of a change
_STYLES = {
    "same": "",
    "old": "red strike",
    "arrow": "dim",
    "new": "bold green",
    "doubt": "yellow underline",
    "note": "dim",
}
_COLOURED = dict.fromkeys(_STYLES, "{}") | {"note": " {}"}
_MARKED = _COLOURED | {"old": "[-{}-]", "arrow": "", "new": "{{+{}+}}", "doubt": "[?{}?]"}
"""Mark old and new text without colours, like `git diff --word-diff`."""

_Segment = tuple[str, str]  # its kind, a key of `_STYLES`, and a text


class TextChange(NamedTuple):
    """A part of a text that was replaced, or that may be wrong if `new` is `old`."""

    start: int
    old: str
    new: str
    note: str = ""  # shown after the new text, such as the confidence in it


def readable(original: str, changes: Sequence[TextChange], *, colours: bool) -> Table:
    """Return the changed lines with their numbers, given the changed parts in order.

    Old text is red and struck out, new text green and doubtful text yellow or, without colours,
    [-marked-], {+marked+} and [?marked?].
    """
    forms = _COLOURED if colours else _MARKED
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line_number, segments in _lines(_segments(original, changes)):
        if any(kind != "same" for kind, _ in segments):
            line = Text()
            for kind, text in _shortened(segments):
                line.append(forms[kind].format(text), _STYLES[kind])
            table.add_row(f"{line_number} │", line)
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
    """Merge adjacent replacements: all old text, then all new text, then their notes."""
    end = 0
    pending: list[TextChange] = []
    for change in changes:
        between = original[end : change.start]
        if between or change.new == change.old:
            yield from (*_merged(pending), ("same", between))
            pending = []
        if change.new == change.old:
            yield from (("doubt", change.old), ("note", change.note))
        else:
            pending.append(change)
        end = change.start + len(change.old)
    yield from (*_merged(pending), ("same", original[end:]))


def _merged(changes: Sequence[TextChange]) -> Iterator[_Segment]:
    old = "".join(change.old for change in changes)
    new = "".join(change.new for change in changes)
    yield ("old", old)
    yield ("arrow", "→" if old and new else "")
    yield ("new", new)
    yield ("note", ", ".join(change.note for change in changes if change.note))


def _lines(segments: Iterable[_Segment]) -> Iterator[tuple[int, list[_Segment]]]:
    """Yield the numbered lines of the original, safe to print; replaced line ends become signs."""
    line_number, following = 1, 1
    line: list[_Segment] = []
    for kind, text in segments:
        if kind != "same":
            if text:
                signs = text.replace("\r", "␍").replace("\n", "↵")
                line.append((kind, printable(signs)))
            following += text.count("\n") if kind in ("old", "doubt") else 0
            continue
        first, *others = printable(text).split("\n")
        line.append(("same", first))
        for other in others:
            yield line_number, line
            following += 1
            line_number, line = following, [("same", other)]
    yield line_number, line


def _shortened(segments: Sequence[_Segment]) -> Iterator[_Segment]:
    """Shorten unchanged text to what is near a change."""
    last = len(segments) - 1
    for i, (kind, text) in enumerate(segments):
        if kind == "same":
            head = "" if i == 0 else text[:_CONTEXT]
            tail = "" if i == last else text[-_CONTEXT:]
            if len(text) > len(head) + len(tail) + 3:
                text = f"{head} … {tail}"
        yield (kind, text)
