"""Passages of clean text to evaluate correction on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from typing import Final, NamedTuple

LONGEST_PASSAGE: Final = 2_000
"""Characters of a passage at most: about a page."""


class Passage(NamedTuple):
    """Consecutive words of a document."""

    document: int
    text: str


def take_passages(texts: Iterable[str], max_characters: int) -> list[Passage]:
    """Return passages in equal parts of all texts, of at most `max_characters` in total.

    A text is cut at white space. Passages are taken from its middle on, because texts of one kind
    begin alike, first one of every text, then a second one, and so on.
    """
    documents = [text for text in texts if text.strip()]
    length = max(1, min(LONGEST_PASSAGE, max_characters // max(1, len(documents))))
    cut = [_passages_of(number, text, length) for number, text in enumerate(documents)]
    found: list[Passage] = []
    left = max_characters
    for turn in zip_longest(*cut):
        for passage in turn:
            if passage is not None and len(passage.text) <= left:
                found.append(passage)
                left -= len(passage.text)
    return found


def _passages_of(number: int, text: str, length: int) -> list[Passage]:
    """Cut a text at white space; a word longer than `length` is left out."""
    found: list[Passage] = []
    start, middle = 0, 0
    while start < len(text):
        stop = min(start + length, len(text))
        if stop < len(text):
            while stop > start and not text[stop].isspace():
                stop -= 1
            if stop == start and not text[start].isspace():  # a word longer than a passage
                space = re.search(r"\s", text[start:])
                start = start + space.start() if space else len(text)
                continue
        if start <= len(text) // 2:
            middle = len(found)
        if part := text[start:stop].strip():
            found.append(Passage(number, part))
        start = stop + 1
    return found[middle:] + found[:middle]
