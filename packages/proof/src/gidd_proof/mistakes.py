"""Scored places of a text, and how many of its words are mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gidd.pipeline import Alternative

CALIBRATED_RATE: Final = 0.05
"""Mistakes per word of the text on which confidences were calibrated."""

OTHER_TEXT: Final = 0.04
"""Fraction of misspelt words for which the right text is not among the candidates."""

CHARACTERS_PER_WORD: Final = 6.0
_RATES = 0.005, 0.25
_PRIOR_WORDS = 60.0
"""Weight of `CALIBRATED_RATE` beside the words of a text: a sentence says little about its rate."""

_ITERATIONS = 20


class ScoredPlace(NamedTuple):
    """What may be right at a place; the first text is the one that was found."""

    start: int
    texts: tuple[str, ...]
    weights: tuple[float, ...]
    """Log odds of each text against the found one, at `CALIBRATED_RATE`."""

    is_slip: bool = False
    """Whether these are known words that writers confuse or double: a text with many typos does not
    have more of these mistakes."""

    @property
    def stop(self) -> int:
        """End of the found text."""
        return self.start + len(self.texts[0])

    def probabilities(self, rate: float = CALIBRATED_RATE) -> list[float]:
        """Return the probability of each text, at a number of mistakes per word."""
        shift = math.log(rate / CALIBRATED_RATE)
        if self.is_slip:
            shift = min(shift, 0.0)
        weights = [self.weights[0], *(weight + shift for weight in self.weights[1:])]
        largest = max(weights)
        exponentials = [math.exp(weight - largest) for weight in weights]
        total = math.fsum(exponentials)
        return [value / total for value in exponentials]

    def alternatives(self, rate: float) -> list[Alternative]:
        """Return each text with its probability; the found text gets what `OTHER_TEXT` leaves."""
        listed = 1 if self.is_slip else 1 - OTHER_TEXT
        _, *others = (value * listed for value in self.probabilities(rate))
        return list(map(Alternative, self.texts, [1 - math.fsum(others), *others]))


def estimate_rate(places: Sequence[ScoredPlace], num_words: int) -> float:
    """Return the mistakes per word of a text, by expectation maximisation.

    The expected number of mistakes gives the next rate, with a prior of `_PRIOR_WORDS` words.
    """
    rate = CALIBRATED_RATE
    for _ in range(_ITERATIONS):
        expected = math.fsum(1 - place.probabilities(rate)[0] for place in places)
        estimate = (expected + _PRIOR_WORDS * CALIBRATED_RATE) / (num_words + _PRIOR_WORDS)
        rate = min(max(estimate, _RATES[0]), _RATES[1])
    return rate
