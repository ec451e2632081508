"""Parts of a long text that are corrected one after the other, each in its context."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PART_CHARACTERS: Final = 2048
"""Characters of a part: a few seconds of work on a CPU, so that little is lost by an interrupt."""

PART_CONTEXT: Final = 128
"""Characters of context on each side of a part."""

_SPACES = re.compile(r"\s")


class TextPart(NamedTuple):
    """A part text[start:stop] with its context text[context_start:context_stop]."""

    start: int
    stop: int
    context_start: int
    context_stop: int


def parts_of(text: str, size: int = PART_CHARACTERS) -> list[TextPart]:
    """Cut a text into parts of at most `size` characters, after white space where there is any."""
    found: list[TextPart] = []
    start = 0
    while start < len(text):
        stop = min(start + size, len(text))
        if stop < len(text):
            spaces = [match.end() for match in _SPACES.finditer(text, start, stop)]
            stop = spaces[-1] if spaces else stop
        context = max(0, start - PART_CONTEXT), min(len(text), stop + PART_CONTEXT)
        found.append(TextPart(start, stop, *context))
        start = stop
    return found


def spread_parts(text: str, size: int, number: int) -> list[TextPart]:
    """Return at most `number` parts of a text, evenly spaced: all of a short text."""
    parts = parts_of(text, size)
    if len(parts) <= number:
        return parts
    return [parts[(2 * k + 1) * len(parts) // (2 * number)] for k in range(number)]
