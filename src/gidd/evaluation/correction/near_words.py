"""Words of a dictionary that two edits reach, as pyspellchecker finds them, in milliseconds.

An edit drops, adds or replaces a character, or exchanges two neighbours. pyspellchecker makes all
strings that two edits give, which takes seconds for a long word; here the words of the dictionary
are compared instead. The result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from gidd.evaluation.correction.edit_distance import levenshtein

_EDITS = 2


@final
class NearWords:
    """A dictionary, searched by the number of each letter before words are compared."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words, key=lambda word: (len(word), word))
        self._lengths = np.array([len(word) for word in self._words])
        letters, columns = np.unique(_codes("".join(self._words)), return_inverse=True)
        self._letters = letters
        self._counts = np.zeros((len(self._words), len(letters) + 1), dtype=np.int16)
        np.add.at(self._counts, (np.repeat(np.arange(len(self._words)), self._lengths), columns), 1)

    def _count(self, word: str) -> NDArray[np.int16]:
        """Return how often a word has each letter; the last number is for unknown ones."""
        codes = _codes(word)
        columns = np.searchsorted(self._letters, codes)
        is_known = np.isin(codes, self._letters)
        columns = np.where(is_known, columns, len(self._letters))
        return np.bincount(columns, minlength=len(self._letters) + 1).astype(np.int16)

    def within_two_edits(self, word: str, one_edit: Iterable[str]) -> list[str]:
        """Return the words that two edits of `word` give, in alphabetical order.

        Args:
            word: The word to look up.
            one_edit: What one edit of it gives.
        """
        # an edit changes the length by 1 at most, the numbers of letters by 2, by 0 for an exchange
        lengths = [len(word) - _EDITS, len(word) + _EDITS + 1]
        start, stop = np.searchsorted(self._lengths, lengths)
        differences = np.abs(self._counts[start:stop] - self._count(word)).sum(1)
        once = tuple(one_edit)
        found: list[str] = []
        for index in np.flatnonzero(differences <= 2 * _EDITS):
            other, difference = self._words[start + index], differences[index]
            # only an exchange is one edit here, but two in a Levenshtein distance
            if levenshtein(word, other) <= _EDITS or (
                difference <= 2 and any(is_one_edit(changed, other) for changed in once)
            ):
                found.append(other)
        return sorted(found)


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def is_one_edit(first: str, second: str) -> bool:
    """Whether one edit or none turns a word into another one."""
    if abs(len(first) - len(second)) > 1:
        return False
    start, shorter = 0, min(len(first), len(second))
    while start < shorter and first[start] == second[start]:
        start += 1
    first, second = first[start:], second[start:]
    if len(first) != len(second):
        return first[1:] == second or first == second[1:]
    return first[1:] == second[1:] or (first[1::-1] == second[:2] and first[2:] == second[2:])
