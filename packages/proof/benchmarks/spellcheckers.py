"""Spell checkers that a user would take instead, with their own English dictionaries.

Each word is looked up alone, in lower case, from its first to its last letter or digit, and its
capitals are restored.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from noises import with_case_of

Corrector = Callable[[str], str]
"""Returns a text without its mistakes."""

_CORE = re.compile(r"[A-Za-z0-9](?:[^\s\-—]*[A-Za-z0-9])?")
"""A word, or a part of a word with hyphens, without the punctuation around it."""

_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|s)")


def spellchecker(name: str) -> Corrector:
    """Return the corrector of a package of the extra `bench`."""
    lookup = lru_cache(1 << 16)(SPELLCHECKERS[name]())

    def correct_word(found: re.Match[str]) -> str:
        word = found.group()
        is_word = sum(map(str.isalpha, word)) > sum(map(str.isdigit, word))
        if not is_word or _ORDINAL.fullmatch(word):
            return word
        best = lookup(word.lower())
        return word if best == word.lower() else with_case_of(word, best)

    return lambda text: _CORE.sub(correct_word, text)


def _symspellpy() -> Corrector:
    import symspellpy

    words: Any = symspellpy.SymSpell(max_dictionary_edit_distance=2)
    file = importlib.resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
    with importlib.resources.as_file(file) as path:
        words.load_dictionary(path, term_index=0, count_index=1, encoding="utf-8")
    top: Any = symspellpy.Verbosity.TOP
    return lambda word: str(words.lookup(word, top, 2, include_unknown=True)[0].term)


def _pyspellchecker() -> Corrector:
    from spellchecker import SpellChecker

    words: Any = SpellChecker(language="en", distance=2)
    return lambda word: str(words.correction(word) or word)


SPELLCHECKERS: Final[Mapping[str, Callable[[], Corrector]]] = {
    "symspellpy": _symspellpy,
    "pyspellchecker": _pyspellchecker,
}
"""Packages: each takes the most frequent of the nearest words up to edit distance 2."""
