"""Text from outside as it may be printed: without control characters, and of bounded length."""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

_HARMLESS = "\n\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Not printable by Unicode, but parts of ordinary text such as emoji and Persian."""

_LONGEST = 200  # characters of a value that a message shows
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlong = 3, 40
_SHORT.maxstring = _SHORT.maxother = 80


def printable(text: str) -> str:
    """Replace control characters except line breaks, so that text cannot control a terminal."""
    return "".join(
        c
        if c.isprintable() or c in _HARMLESS
        else (" " if c == "\t" or unicodedata.category(c) == "Zs" else "\ufffd")
        for c in text.replace("\r\n", "\n")
    )


def shorten(value: object) -> str:
    """Return the `repr` of a value read from a file, in bounded time and length."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the question whether the most similar known name is meant, after a space, or ""."""
    near = get_close_matches(str(name), list(known), 1, cutoff)
    return f" Did you mean {near[0]}?" if near else ""
