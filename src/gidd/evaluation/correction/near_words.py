"""Words of a dictionary that two edits reach, as pyspellchecker finds them, in milliseconds.

An edit drops, adds or replaces a character, or exchanges two neighbours. pyspellchecker makes all
strings that two edits give, which takes seconds for a long word; here the words of the dictionary
are compared instead. The result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from gidd.evaluation.correction.edit_distance import levenshtein

_EDITS = 2


@final
class NearWords:
    """A dictionary, searched by the number of each letter before words are compared."""

    def __init__(self, words: Iterable[str]) -> None:
        from gidd.proofreading.words import WordList  # imports torch, which help texts must not

        self._words = WordList(dict.fromkeys(words, 1))

    def within_two_edits(self, word: str, one_edit: Iterable[str]) -> list[str]:
        """Return the words that two edits of `word` give, in alphabetical order.

        Args:
            word: The word to look up.
            one_edit: What one edit of it gives.
        """
        once = tuple(one_edit)
        # only an exchange is one edit here, but two in a Levenshtein distance; it changes no letter
        exchanged = set(self._words.with_similar_letters(word, edits=1))
        return sorted(
            other
            for other in self._words.with_similar_letters(word, _EDITS)
            if levenshtein(word, other) <= _EDITS
            or (other in exchanged and any(is_one_edit(changed, other) for changed in once))
        )


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
