"""gidd-proof, and spell checkers that a user would take instead, with their own dictionaries.

Each word is looked up alone, in lower case, from its first to its last letter or digit, and its
capitals are restored; answers are kept, so that each different word is looked up once. Ways to call
them:

- plain: the first suggestion is taken (symspellpy and pyspellchecker rank by frequency themselves);
- `careful`: words with a capital are left alone, which are names more often than mistakes;
- `ranked`: careful, and of the suggestions with the fewest edits the most frequent is taken, by the
  counts of symspellpy's list (for those that do not know frequencies).

Harper gets the whole text, and its lints about spelling are applied; the others spoil more words of
these sets than they fix.
"""

from __future__ import annotations

import importlib.resources
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import gidd_proof
from gidd_proof.edit_model import edit_distance
from noises import with_case_of

OURS: Final = "gidd-proof"

Corrector = Callable[[str], str]
"""Returns a text without its mistakes."""

Suggest = Callable[[str], Sequence[str]]
"""Returns what may be right in place of a word in lower case; nothing if the word is right."""

Choose = Callable[[str, Sequence[str]], str]
"""Returns one of the suggestions for a word."""

_CORE = re.compile(r"[^\W_](?:[^\s\-—]*[^\W_])?")
"""A word, or a part of a word with hyphens, without the punctuation around it."""

_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|s)")


def correctors(name: str, model: str | None = None) -> dict[str, Corrector]:
    """Return the ways to call gidd-proof, a package of the extra `bench`, or a program, by name."""
    if name == OURS:
        proofreader = gidd_proof.load(model, device="cpu")
        return {OURS: lambda text: proofreader.correct(text).text}
    if name == "harper":
        return {
            "harper": _harper(first, careful=False),
            "harper, careful": _harper(first, careful=True),
            "harper, ranked": _harper(most_frequent_nearest, careful=True),
        }
    suggest = lru_cache(None)(SPELLCHECKERS[name]())
    ways = {
        name: _text_corrector(suggest, first, careful=False),
        f"{name}, careful": _text_corrector(suggest, first, careful=True),
    }
    if name in ("aspell", "hunspell"):
        ways[f"{name}, ranked"] = _text_corrector(suggest, most_frequent_nearest, careful=True)
    return ways


def first(word: str, suggestions: Sequence[str]) -> str:
    """Return the first suggestion."""
    return suggestions[0]


def most_frequent_nearest(word: str, suggestions: Sequence[str]) -> str:
    """Return the most frequent of the suggestions that are the fewest edits away."""
    counts = _web_counts()
    return min(
        suggestions, key=lambda s: (edit_distance(word, s.lower()), -counts.get(s.lower(), 0))
    )


def _text_corrector(suggest: Suggest, choose: Choose, *, careful: bool) -> Corrector:
    def correct_word(found: re.Match[str]) -> str:
        word = found.group()
        is_word = sum(map(str.isalpha, word)) > sum(map(str.isdigit, word))
        if not is_word or _ORDINAL.fullmatch(word) or (careful and word != word.lower()):
            return word
        suggestions = suggest(word.lower())
        return with_case_of(word, choose(word.lower(), suggestions)) if suggestions else word

    return lambda text: _CORE.sub(correct_word, text)


@lru_cache(1)
def _web_counts() -> dict[str, int]:
    file = importlib.resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
    rows = map(str.split, file.read_text(encoding="utf-8-sig").splitlines())
    return {word: int(count) for word, count in rows}


def _symspellpy() -> Suggest:
    import symspellpy

    words: Any = symspellpy.SymSpell(max_dictionary_edit_distance=2)
    file = importlib.resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
    with importlib.resources.as_file(file) as path:
        words.load_dictionary(path, term_index=0, count_index=1, encoding="utf-8")
    top: Any = symspellpy.Verbosity.TOP
    return lambda word: [found.term for found in words.lookup(word, top, 2) if found.term != word]


def _pyspellchecker() -> Suggest:
    from spellchecker import SpellChecker

    words: Any = SpellChecker(language="en", distance=2)

    def suggest(word: str) -> list[str]:
        best = words.correction(word)
        return [best] if best and best != word else []

    return suggest


def _ispell_pipe(*command: str) -> Suggest:
    """Return the suggestions of a program with ispell's protocol."""
    pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    words, answers = pipe.stdin, pipe.stdout
    assert words is not None and answers is not None
    answers.readline()  # its version

    def suggest(word: str) -> list[str]:
        print(f"^{word}", file=words, flush=True)
        found = list(iter(answers.readline, "\n"))
        if len(found) != 1 or not found[0].startswith("&"):
            return []
        return found[0].partition(": ")[2].strip().split(", ")

    return suggest


def _harper(choose: Choose, *, careful: bool) -> Corrector:
    """Return the corrector that applies a suggestion of lints, from the end of the text."""
    import harper

    linter: Any = harper.Linter()

    @lru_cache(None)
    def correct(text: str) -> str:
        for lint in sorted(linter.lint(text), key=lambda lint: -lint.span.start):
            word, texts = lint.problem_text, [s.replacement_text or "" for s in lint.suggestions]
            if lint.lint_kind == "Spelling" and texts and not (careful and word != word.lower()):
                best = lint.suggestions[texts.index(choose(word.lower(), texts))]
                text = linter.apply_suggestion(text, lint, best)
        return text

    return correct


SPELLCHECKERS: Final[Mapping[str, Callable[[], Suggest]]] = {
    "symspellpy": _symspellpy,
    "pyspellchecker": _pyspellchecker,
    "aspell": lambda: _ispell_pipe("aspell", "-a", "--lang=en_US", "--encoding=utf-8"),
    "hunspell": lambda: _ispell_pipe("hunspell", "-a", "-d", "en_US", "-i", "utf-8"),
}
"""Suggestions for a word of packages that take the most frequent of the nearest words, and of
Debian's programs."""

METHODS: Final = (OURS, *SPELLCHECKERS, "harper")
