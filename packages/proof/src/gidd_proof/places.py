"""Judged places of a text, and the mistakes that explain them: how many, and of which kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gidd.proofreading.edits import Alternative

LEAST_MISTAKE_RATE: Final = 1e-4
MOST_MISTAKE_RATE: Final = 0.3

_ITERATIONS = 30
_PRIOR_MISTAKES = 5.0
"""Mistakes that the first fractions of the kinds are worth."""


class JudgedPlace(NamedTuple):
    """What may be right at a place; the first text is the found one."""

    start: int
    texts: tuple[str, ...]

    weights: tuple[float, ...]
    """Log odds of each text against the found one, for some `Mistakes`."""

    edits: tuple[tuple[int, ...], ...]
    """Number of mistakes of each kind that turned each text into the found one."""

    def probabilities(self, shifts: Sequence[float] = ()) -> list[float]:
        """Return the probability of each text; a mistake is exp(shift) times as likely."""
        weights = list(self.weights)
        if shifts:
            for i, counts in enumerate(self.edits):
                weights[i] += sum(n * shift for n, shift in zip(counts, shifts, strict=True) if n)
        largest = max(weights)
        exponentials = [math.exp(weight - largest) for weight in weights]
        total = math.fsum(exponentials)
        return [value / total for value in exponentials]

    def alternatives(self, shifts: Sequence[float] = ()) -> list[Alternative]:
        """Return each text with its probability."""
        return list(map(Alternative, self.texts, self.probabilities(shifts)))


class Mistakes(NamedTuple):
    """Mistakes per character, and fractions of their kinds."""

    rate: float
    shares: tuple[float, ...]

    def shifts_from(self, first: Mistakes) -> list[float]:
        """Return the log of how much more likely a mistake of each kind is than with others."""
        return [
            math.log(self.rate * share / (first.rate * other))
            for share, other in zip(self.shares, first.shares, strict=True)
        ]


def fit_mistakes(
    places: Sequence[JudgedPlace], first: Mistakes, num_characters: int | None = None
) -> Mistakes:
    """Return the most likely mistakes of a text, by expectation maximisation.

    Expected mistakes give the next rate and fractions. They include letters that were added,
    dropped or exchanged, which a noise level of replaced characters does not describe.

    Args:
        places: Doubtful places of the text, judged with `first`; all others are right.
        first: Where to begin.
        num_characters: Length of the text; None keeps the rate of `first`.
    """
    found = first
    for _ in range(_ITERATIONS):
        shifts = found.shifts_from(first)
        expected = [0.0] * len(first.shares)
        for place in places:
            for probability, counts in zip(place.probabilities(shifts), place.edits, strict=True):
                for kind, number in enumerate(counts):
                    expected[kind] += probability * number
        total = math.fsum(expected)
        shares = tuple(
            (count + _PRIOR_MISTAKES * share) / (total + _PRIOR_MISTAKES)
            for count, share in zip(expected, first.shares, strict=True)
        )
        rate = found.rate
        if num_characters is not None:
            rate = min(max(total / num_characters, LEAST_MISTAKE_RATE), MOST_MISTAKE_RATE)
        found = Mistakes(rate, shares)
    return found


class CountedPart(NamedTuple):
    """The doubtful places of a part of a text."""

    places: tuple[JudgedPlace, ...]
    num_characters: int
    calls: int
    """Forward passes."""


def estimate_mistakes(parts: Sequence[CountedPart], first: Mistakes) -> tuple[float, float]:
    """Return the number of mistakes per character and its standard error, by the jackknife.

    The places were judged with `first`. Of a single part, the error is that of a number of
    independent mistakes.
    """
    found = _rate_of(parts, first)
    if len(parts) < 2:
        characters = max(1, sum(part.num_characters for part in parts))
        return found, math.sqrt(found / characters)
    without = [_rate_of([*parts[:k], *parts[k + 1 :]], first) for k in range(len(parts))]
    mean = math.fsum(without) / len(without)
    squares = math.fsum((value - mean) ** 2 for value in without)
    return found, math.sqrt(squares * (len(parts) - 1) / len(parts))


def _rate_of(parts: Sequence[CountedPart], first: Mistakes) -> float:
    places = [place for part in parts for place in part.places]
    return fit_mistakes(places, first, max(1, sum(part.num_characters for part in parts))).rate
