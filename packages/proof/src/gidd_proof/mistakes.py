"""Scored places of a text, and the mistakes that explain them: how many, and of which kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gidd.pipeline import Alternative

SMALLEST_RATE: Final = 1e-4
LARGEST_RATE: Final = 0.3

_ITERATIONS = 30
_PRIOR_MISTAKES = 5.0
"""Weight of the first fractions of the kinds, in mistakes."""


class ScoredPlace(NamedTuple):
    """What may be right at a place; the first text is the one that was found."""

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
    """Mistakes per character, and the fractions of their kinds."""

    rate: float
    kinds: tuple[float, ...]

    def shifts_from(self, first: Mistakes) -> list[float]:
        """Return the log of how much more likely a mistake of each kind is than under `first`."""
        return [
            math.log(self.rate * kind / (first.rate * other))
            for kind, other in zip(self.kinds, first.kinds, strict=True)
        ]


def fit_mistakes(
    places: Sequence[ScoredPlace], first: Mistakes, num_characters: int | None = None
) -> Mistakes:
    """Return the most likely mistakes of a text, by expectation maximisation.

    The expected numbers of mistakes give the next rate and fractions. They include letters that
    were added, dropped or exchanged, which a noise level of replaced characters does not describe.

    Args:
        places: Doubtful places of the text, scored with `first`; all others are right.
        first: Where to begin.
        num_characters: Length of the text; None keeps the rate of `first`.
    """
    found = first
    for _ in range(_ITERATIONS):
        shifts = found.shifts_from(first)
        expected = [0.0] * len(first.kinds)
        for place in places:
            for probability, counts in zip(place.probabilities(shifts), place.edits, strict=True):
                for kind, number in enumerate(counts):
                    expected[kind] += probability * number
        total = math.fsum(expected)
        kinds = tuple(
            (count + _PRIOR_MISTAKES * kind) / (total + _PRIOR_MISTAKES)
            for count, kind in zip(expected, first.kinds, strict=True)
        )
        rate = found.rate
        if num_characters is not None:
            rate = min(max(total / num_characters, SMALLEST_RATE), LARGEST_RATE)
        found = Mistakes(rate, kinds)
    return found


class CountedChunk(NamedTuple):
    """The doubtful places of a chunk of a text."""

    places: tuple[ScoredPlace, ...]
    num_characters: int


def estimate_mistakes(chunks: Sequence[CountedChunk], first: Mistakes) -> tuple[float, float]:
    """Return the number of mistakes per character and its standard error, by the jackknife.

    The places were scored with `first`. The error of a single chunk is that of a Poisson count.
    """
    found = _rate_of(chunks, first)
    if len(chunks) < 2:
        characters = max(1, sum(chunk.num_characters for chunk in chunks))
        return found, math.sqrt(found / characters)
    without = [_rate_of([*chunks[:k], *chunks[k + 1 :]], first) for k in range(len(chunks))]
    mean = math.fsum(without) / len(without)
    squares = math.fsum((value - mean) ** 2 for value in without)
    return found, math.sqrt(squares * (len(chunks) - 1) / len(chunks))


def _rate_of(chunks: Sequence[CountedChunk], first: Mistakes) -> float:
    places = [place for chunk in chunks for place in chunk.places]
    return fit_mistakes(places, first, max(1, sum(chunk.num_characters for chunk in chunks))).rate
