"""Spell checkers that a user would take instead, with their own English dictionaries.

Each word is looked up alone, in lower case, from its first to its last letter or digit, and its
capitals are restored; the first suggestion is taken. `careful` leaves words with a capital alone,
which are names more often than mistakes. Harper gets the whole text.
"""

from __future__ import annotations

import importlib.resources
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from noises import with_case_of

Corrector = Callable[[str], str]
"""Returns a text without its mistakes."""

_CORE = re.compile(r"[^\W_](?:[^\s\-—]*[^\W_])?")
"""A word, or a part of a word with hyphens, without the punctuation around it."""

_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|s)")


def spellchecker(name: str, *, careful: bool = False) -> Corrector:
    """Return the corrector of a package of the extra `bench`, or of a program."""
    lookup = lru_cache(1 << 16)(SPELLCHECKERS[name]())
    if name == "harper":
        return lookup

    def correct_word(found: re.Match[str]) -> str:
        word = found.group()
        is_word = sum(map(str.isalpha, word)) > sum(map(str.isdigit, word))
        if not is_word or _ORDINAL.fullmatch(word) or (careful and word != word.lower()):
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


def _ispell_pipe(*command: str) -> Corrector:
    """Return the first suggestion of a program with ispell's protocol."""
    pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    words, answers = pipe.stdin, pipe.stdout
    assert words is not None and answers is not None
    answers.readline()  # its version

    def correct(word: str) -> str:
        print(f"^{word}", file=words, flush=True)
        found = list(iter(answers.readline, "\n"))
        if len(found) != 1 or not found[0].startswith("&"):
            return word
        return found[0].partition(": ")[2].partition(",")[0].strip()

    return correct


def _harper() -> Corrector:
    """Return the first suggestion of each spelling lint, applied from the end of the text."""
    import harper

    linter: Any = harper.Linter()

    def correct(text: str) -> str:
        for lint in sorted(linter.lint(text), key=lambda lint: -lint.span.start):
            if lint.lint_kind == "Spelling" and lint.suggestions:
                text = linter.apply_suggestion(text, lint, lint.suggestions[0])
        return text

    return correct


SPELLCHECKERS: Final[Mapping[str, Callable[[], Corrector]]] = {
    "symspellpy": _symspellpy,
    "pyspellchecker": _pyspellchecker,
    "aspell": lambda: _ispell_pipe("aspell", "-a", "--lang=en_US", "--encoding=utf-8"),
    "hunspell": lambda: _ispell_pipe("hunspell", "-a", "-d", "en_US", "-i", "utf-8"),
    "harper": _harper,
}
"""Packages that take the most frequent of the nearest words, and Debian's programs."""
