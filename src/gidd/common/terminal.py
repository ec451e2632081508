"""Text from outside as it may be printed: without control characters, and of bounded length."""

from __future__ import annotations

import reprlib
import unicodedata

_HARMLESS = "\n\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Not printable by Unicode, but parts of ordinary text such as emoji and Persian."""

_LONGEST = 200
"""Characters of a value that a message shows."""


def printable(text: str) -> str:
    """Replace control characters except line breaks, so that text cannot control a terminal."""
    return "".join(
        c if c.isprintable() or c in _HARMLESS else " " if _is_space(c) else "\ufffd"
        for c in text.replace("\r\n", "\n")
    )


def _is_space(character: str) -> bool:
    return character == "\t" or unicodedata.category(character) == "Zs"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 80
        self.maxlong = 40


def shorten(value: object) -> str:
    """Return the `repr` of a value read from a file, in bounded time and length."""
    text = _Short().repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
