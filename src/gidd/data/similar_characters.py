"""Characters outside a vocabulary, replaced by similar ones in it, always one by one.

A model that reads characters has those of its training corpus, which may have no curly quotes, long
dashes, accented letters or tabs. Texts keep their length, so that positions stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final
from unicodedata import category, normalize

_SIMILAR = (
    ("'‘’‚‛′ʼ`´‹›", "'’"),
    ('"“”„‟″«»', "\"“'"),
    ("-‐‑‒–—―−", "-—–"),
    ("•‣·∙", "*·-"),
    ("\v\f\x85\u2028\u2029", "\n "),
    ("\n\r\t", " "),
    ("ø", "o"),
    ("Ø", "O"),
    ("æ", "a"),
    ("Æ", "A"),
    ("œ", "o"),
    ("Œ", "O"),
    ("ß", "s"),
    ("đð", "d"),
    ("ĐÐ", "D"),
    ("ł", "l"),
    ("Ł", "L"),
    ("ı", "i"),
    ("þ", "t"),
    ("Þ", "T"),
)
_BY_CHARACTER = {character: others for group, others in _SIMILAR for character in group}
_BY_CATEGORY = {"Pd": "-—–", "Pi": "\"“'", "Pf": "\"”'", "Sc": "$", "Zs": " "}
"""Other dashes, opening and closing quotes, currencies and spaces."""


@final
class SimilarCharacters(dict[int, int]):
    """A table for `str.translate`: code points to those of known characters, if one is similar."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)

    def __missing__(self, code: int) -> int:
        """Find the character, and remember it."""
        candidates = similar_characters(chr(code))
        self[code] = next((ord(other) for other in candidates if other in self._known), code)
        return self[code]


def similar_characters(character: str) -> Iterator[str]:
    """Yield characters that may stand for a character, itself first."""
    yield character
    yield from _BY_CHARACTER.get(character, "")
    base = normalize("NFKD", character)[0]  # é: e, ﬁ: f, ½: 1, no-break space: space
    yield base
    yield from _BY_CATEGORY.get(category(character), "")
    for other in (character.lower(), character.upper(), base.lower(), base.upper()):
        if len(other) == 1:
            yield other
