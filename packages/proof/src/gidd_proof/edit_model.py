"""Edits between a written and the right word: the fewest, and the most likely.

An edit replaces, adds or drops a character, or exchanges two neighbours (optimal string alignment).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, final

if TYPE_CHECKING:
    from gidd_proof.error_models import ErrorModel

EDIT_KINDS: Final = ("substitute", "insert", "delete", "swap")
"""Kinds of mistakes: a character that is replaced, added or dropped, and exchanged neighbours."""

USUAL_KINDS: Final[Mapping[str, float]] = {
    "substitute": 0.24,
    "insert": 0.26,
    "delete": 0.35,
    "swap": 0.15,
}
"""Fractions of the kinds of mistakes of people, if no error model is given. They and the figures
below are those of the 61,000 misspellings of one or two edits in codespell's list."""

SAME_VOWEL: Final = 0.22
"""P(written | right) of another vowel, given that a vowel was replaced."""

SAME_LETTER: Final = 0.3
"""P(written | right) of the letter with an accent, given that a letter was replaced."""

OTHER_LETTER: Final = 0.03
"""P(written | right) of another letter, given that a letter was replaced."""

DOUBLED: Final = 0.31
"""Fraction of added letters that double their neighbour."""

UNDOUBLED: Final = 3.0
"""How much more often a letter is dropped if its neighbour is the same."""

FIRST_LETTER: Final = 0.2
"""How much less often the first letter of a word is wrong."""

OTHER_MISTAKES: Final = 0.05
"""Fraction of replacements that an error model does not describe."""

_VOWELS = frozenset("aeiouy")
_ALPHABET = 26
"""Number of characters that a writer may add, or write instead of the right one."""

_OTHER_KINDS = 0.1
"""Weight of `USUAL_KINDS` beside the kinds of an error model."""


class CharacterEdit(NamedTuple):
    """A mistake at one place of the right text."""

    kind: str
    right: str
    """The character, or the two that were exchanged; empty for an added character."""

    written: str
    """What was written instead; empty for a dropped character."""


def edit_distance(wrong: str, right: str) -> int:
    """Return the number of `character_edits`."""
    return _alignment_costs(wrong, right)[-1][-1]


def character_edits(wrong: str, right: str) -> list[CharacterEdit]:
    """Return the fewest edits of `right` that give `wrong`, in order.

    Among equally short lists, replacements are preferred to pairs of an added and a dropped
    character.
    """
    costs = _alignment_costs(wrong, right)
    edits: list[CharacterEdit] = []
    i, j = len(wrong), len(right)
    while i or j:
        cost = costs[i][j]
        if i and j and wrong[i - 1] == right[j - 1] and cost == costs[i - 1][j - 1]:
            i, j = i - 1, j - 1
        elif _is_swap(wrong, right, i, j) and cost == costs[i - 2][j - 2] + 1:
            edits.append(CharacterEdit("swap", right[j - 2 : j], wrong[i - 2 : i]))
            i, j = i - 2, j - 2
        elif i and j and cost == costs[i - 1][j - 1] + 1:
            i, j = i - 1, j - 1
            edits.append(CharacterEdit("substitute", right[j], wrong[i]))
        elif i and cost == costs[i - 1][j] + 1:
            i -= 1
            edits.append(CharacterEdit("insert", "", wrong[i]))
        else:
            j -= 1
            edits.append(CharacterEdit("delete", right[j], ""))
    return edits[::-1]


def count_edits(written: str, right: str) -> tuple[int, ...]:
    """Return how often each of `EDIT_KINDS` turned the right word into the written one."""
    kinds = [edit.kind for edit in character_edits(written, right)]
    return tuple(map(kinds.count, EDIT_KINDS))


def _alignment_costs(wrong: str, right: str) -> list[list[int]]:
    """Return the distance of every prefix of `wrong` from every prefix of `right`."""
    costs = [list(range(len(right) + 1))]
    for i, written in enumerate(wrong, 1):
        row = [i]
        for j, character in enumerate(right, 1):
            cost = min(
                costs[i - 1][j - 1] + (written != character), costs[i - 1][j] + 1, row[j - 1] + 1
            )
            if _is_swap(wrong, right, i, j):
                cost = min(cost, costs[i - 2][j - 2] + 1)
            row.append(cost)
        costs.append(row)
    return costs


def _is_swap(wrong: str, right: str, i: int, j: int) -> bool:
    """Whether the last two of i written and of j right characters are exchanged."""
    return (
        min(i, j) >= 2
        and wrong[i - 1] == right[j - 2]
        and wrong[i - 2] == right[j - 1]
        and wrong[i - 1] != wrong[i - 2]
    )


@final
@dataclass(frozen=True)
class EditModel:
    """The probability of mistakes. The cost of an edit is -log of its probability per character."""

    error_rate: float
    """Mistakes per character."""

    error_model: ErrorModel | None = None

    @cached_property
    def _costs(self) -> dict[tuple[str, float, bool], float]:
        """Costs that were computed."""
        return {}

    @cached_property
    def kinds(self) -> dict[str, float]:
        """Fractions of the kinds of mistakes; they sum to 1."""
        if self.error_model is None:
            return dict(USUAL_KINDS)
        return {
            kind: (1 - _OTHER_KINDS) * self.error_model.kinds[kind] + _OTHER_KINDS * usual
            for kind, usual in USUAL_KINDS.items()
        }

    def log_probability(self, written: str, right: str) -> float:
        """Return log P(written | right) by the most likely edits, relative to no edit."""
        deletes = [self._delete(right, j) for j in range(len(right))]
        before: list[float] = []
        last = [0.0, *accumulate(deletes)]
        for i, x in enumerate(written, 1):
            insert = self._insert(written, i - 1)
            row = [last[0] + insert]
            for j, y in enumerate(right, 1):
                is_first = i == 1 or j == 1
                best = last[j - 1] + (0.0 if x == y else self._substitute(x, y, is_first))
                best = min(best, last[j] + insert, row[-1] + deletes[j - 1])
                if i > 1 and j > 1 and x == right[j - 2] != y and written[i - 2] == y:
                    best = min(best, before[j - 2] + self._cost("swap", 1.0, j == 2))
                row.append(best)
            before, last = last, row
        return -last[-1]

    def _substitute(self, written: str, right: str, is_first: bool) -> float:
        if self.error_model is not None:
            likelihood = 1 / _ALPHABET
            if self.error_model.by_right.get(right):
                listed = self.error_model.probability(written, right)
                likelihood = (1 - OTHER_MISTAKES) * listed + OTHER_MISTAKES * likelihood
            return self._cost("substitute", likelihood)
        if not written.isascii() and unicodedata.normalize("NFKD", written)[0] == right:
            return self._cost("substitute", SAME_LETTER)
        is_vowel = written in _VOWELS and right in _VOWELS
        return self._cost("substitute", SAME_VOWEL if is_vowel else OTHER_LETTER, is_first)

    def _insert(self, written: str, i: int) -> float:
        is_double = written[i] in (written[i - 1 : i], written[i + 1 : i + 2])
        likelihood = DOUBLED if is_double else (1 - DOUBLED) / _ALPHABET
        return self._cost("insert", likelihood, is_first=i == 0 and not is_double)

    def _delete(self, right: str, j: int) -> float:
        is_double = right[j] in (right[j - 1 : j], right[j + 1 : j + 2])
        return self._cost("delete", UNDOUBLED if is_double else 1.0, is_first=j == 0)

    def _cost(self, kind: str, likelihood: float = 1.0, is_first: bool = False) -> float:
        key = kind, likelihood, is_first
        if key not in self._costs:
            factor = likelihood * (FIRST_LETTER if is_first else 1.0)
            self._costs[key] = -math.log(min(self.error_rate * self.kinds[kind] * factor, 1.0))
        return self._costs[key]
