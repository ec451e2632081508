"""How likely a writer is to make an edit: log P(written word | right word)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from gidd.proofreading.alignment import character_edits
from gidd.proofreading.channels import EDIT_KINDS, OTHER_MISTAKES, Channel

USUAL_KINDS: Final[Mapping[str, float]] = {
    "substitute": 0.4,
    "insert": 0.2,
    "delete": 0.25,
    "swap": 0.15,
}
"""Fractions of the kinds of mistakes, without a channel that says otherwise."""

_ALPHABET = 26
"""Characters that a writer may add or write instead of the right one."""

_OTHER_KINDS = 0.1
"""Fraction of mistakes of the usual kinds, whatever the channel says."""


@final
@dataclass(frozen=True)
class EditCosts:
    """The cost of an edit is -log of its probability per character of the text."""

    error_rate: float
    """Mistakes per character."""

    channel: Channel | None = None

    def substitute(self, written: str, right: str) -> float:
        """Return the cost of a replaced character."""
        likelihood = 1 / _ALPHABET
        if self.channel is not None and self.channel.by_right.get(right):
            listed = self.channel.probability(written, right)
            likelihood = (1 - OTHER_MISTAKES) * listed + OTHER_MISTAKES * likelihood
        return self._cost("substitute", likelihood)

    @property
    def insert(self) -> float:
        """Return the cost of a character that the writer added."""
        return self._cost("insert", 1 / _ALPHABET)

    @property
    def delete(self) -> float:
        """Return the cost of a character that the writer dropped."""
        return self._cost("delete", 1.0)

    @property
    def swap(self) -> float:
        """Return the cost of two exchanged characters."""
        return self._cost("swap", 1.0)

    def _cost(self, kind: str, likelihood: float) -> float:
        return -math.log(self.error_rate * self.shares[kind] * likelihood)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Fractions of the kinds of mistakes, with the sum 1."""
        if self.channel is None:
            return dict(USUAL_KINDS)
        return {
            kind: (1 - _OTHER_KINDS) * self.channel.kinds[kind] + _OTHER_KINDS * usual
            for kind, usual in USUAL_KINDS.items()
        }

    def log_probability(self, written: str, right: str) -> float:
        """Return log P(written | right) by the most likely edits, relative to no edit."""
        insert, delete, swap = self.insert, self.delete, self.swap
        before: list[float] = []
        last = [delete * j for j in range(len(right) + 1)]
        for i, x in enumerate(written, 1):
            row = [insert * i]
            for j, y in enumerate(right, 1):
                same = last[j - 1] + (0.0 if x == y else self.substitute(x, y))
                best = min(last[j] + insert, row[-1] + delete, same)
                if i > 1 and j > 1 and x == right[j - 2] != y and written[i - 2] == y:
                    best = min(best, before[j - 2] + swap)
                row.append(best)
            before, last = last, row
        return -last[-1]


def count_edits(written: str, right: str) -> tuple[int, ...]:
    """Return how often each of `EDIT_KINDS` turned the right word into the written one."""
    kinds = [edit.kind for edit in character_edits(written, right)]
    return tuple(map(kinds.count, EDIT_KINDS))
