"""Common misspellings, and the words that their writers meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, final

from gidd_proof.words import MODEL_FOLDER, WordList, normal

MISSPELLINGS_FILE: Final = "misspellings.txt"
"""File of the packaged model: the right word, a colon, and its common misspellings."""

_ENDINGS: Final = ("s", "'s", "d", "ed", "ing", "ly", "ness", "er", "ment")
_PREFIXES: Final = ("un", "in", "re", "dis", "non")


@final
class Misspellings:
    """Looks up what was meant by a common misspelling, also with an ending or a prefix."""

    def __init__(self, rows: Iterable[tuple[str, Sequence[str]]] = ()) -> None:
        """Make a list of pairs of a right word and its misspellings."""
        self._right: dict[str, list[str]] = {}
        for right, misspellings in rows:
            for misspelling in misspellings:
                self._right.setdefault(misspelling, []).append(right)

    @classmethod
    @lru_cache(1)
    def packaged(cls) -> Misspellings:
        """Return the packaged list."""
        lines = (MODEL_FOLDER / MISSPELLINGS_FILE).read_text(encoding="utf-8").splitlines()
        pairs = (line.partition(": ") for line in lines)
        return cls((right, wrong.split()) for right, _, wrong in pairs)

    def __contains__(self, written: str) -> bool:
        """Whether a word itself is in the list, in any case."""
        return normal(written) in self._right

    def read_as(self, written: str) -> str:
        """Return the one word that a misspelling stands for, or the word itself."""
        rights = self._right.get(normal(written), ())
        return rights[0] if len(rights) == 1 and " " not in rights[0] else written

    def corrections(self, written: str, words: WordList) -> tuple[str, ...]:
        """Return the words that a misspelling stands for; nothing if it is not in the list."""
        written = normal(written)
        if written in self._right:
            return tuple(
                right for right in self._right[written] if all(w in words for w in right.split())
            )
        stems = [(written.removesuffix(e), "", e) for e in _ENDINGS if written.endswith(e)]
        stems += [(written.removeprefix(p), p, "") for p in _PREFIXES if written.startswith(p)]
        inflected = (
            prefix + right + ending
            for stem, prefix, ending in stems
            for right in self._right.get(stem, ())
        )
        return tuple(dict.fromkeys(word for word in inflected if word in words))
