"""Word and character error rates before and after correction, with bootstrap intervals.

counts = [CorrectionCounts.of(noisy, corrected_text) for ...]   # of each passage
rates = correction_rates(counts, groups)        # rates["wer"].value, .low, .high

Words are separated by white space, so punctuation belongs to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from gidd.evaluation.correction.edit_distance import align, levenshtein
from gidd.evaluation.correction.noises import NoisyText
from numpy.typing import NDArray

RESAMPLES: Final = 2000
"""Bootstrap resamples of the documents."""

RATES: Final[Mapping[str, str]] = {
    "wer_before": "word error rate of the noisy text: Levenshtein distance of its words from those "
    "of the clean text / words",
    "wer": "word error rate of the corrected text",
    "cer_before": "character error rate of the noisy text",
    "cer": "character error rate of the corrected text",
    "spoiled": "right words of the noisy text that are wrong or missing in the corrected one / "
    "right words",
    "touched": "words of the noisy text that are changed or missing in the corrected one / words",
    "cut": "1 - wer / wer_before",
}
"""Rates, and what they are."""

_RATIOS = {
    "wer_before": ("word_errors_before", "words"),
    "wer": ("word_errors", "words"),
    "cer_before": ("character_errors_before", "characters"),
    "cer": ("character_errors", "characters"),
    "spoiled": ("spoiled", "right"),
    "touched": ("touched", "words"),
    "cut": ("word_errors", "word_errors_before"),
}
_PERCENTILES = (2.5, 97.5)


class CorrectionCounts(NamedTuple):
    """Numbers of words and characters of one text, before and after correction."""

    words: int
    right: int
    """Words of the noisy text that equal the clean ones."""

    spoiled: int
    touched: int
    word_errors_before: int
    word_errors: int
    characters: int
    character_errors_before: int
    character_errors: int

    @classmethod
    def of(cls, noisy: NoisyText, corrected: str) -> Self:
        """Compare a clean text, the same with mistakes, and its correction."""
        words = corrected.split()
        places = align(noisy.words, words)
        after = [None if place is None else words[place] for place in places]
        compared = list(zip(noisy.clean_words, noisy.words, after, strict=True))
        return cls(
            words=len(compared),
            right=sum(a == b for a, b, _ in compared),
            spoiled=sum(a == b != c for a, b, c in compared),
            touched=sum(b != c for _, b, c in compared),
            word_errors_before=levenshtein(noisy.clean_words, noisy.words),
            word_errors=levenshtein(noisy.clean_words, words),
            characters=len(noisy.clean),
            character_errors_before=levenshtein(noisy.clean, noisy.text),
            character_errors=levenshtein(noisy.clean, corrected),
        )


class CorrectionRate(NamedTuple):
    """A ratio of sums over documents with its 95% bootstrap interval."""

    value: float
    low: float | None = None
    """None for a single document, which does not show it."""

    high: float | None = None
    standard_error: float | None = None


def correction_rates(
    counts: Sequence[CorrectionCounts], groups: Sequence[int] | None = None, seed: int = 0
) -> dict[str, CorrectionRate]:
    """Return all rates over some texts; the bootstrap resamples groups of texts.

    Args:
        counts: Those of each text.
        groups: The document that each text is of; by default each is a document of its own.
        seed: Random seed of the bootstrap.
    """
    sums = _sums_of_groups(counts, range(len(counts)) if groups is None else groups)
    size = len(sums["words"])
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)
    rates: dict[str, CorrectionRate] = {}
    for name, (above, below) in _RATIOS.items():
        rate = _bootstrap(sums[above], sums[below], weights)
        rates[name] = _one_minus(rate) if name == "cut" else rate
    return rates


def _sums_of_groups(
    counts: Sequence[CorrectionCounts], groups: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    totals: dict[int, NDArray[np.float64]] = {}
    for group, count in zip(groups, counts, strict=True):
        values = np.array(count, dtype=np.float64)
        totals[group] = totals[group] + values if group in totals else values
    columns = np.stack(list(totals.values()), axis=1)
    return dict(zip(CorrectionCounts._fields, columns, strict=True))


def _bootstrap(
    above: NDArray[np.float64], below: NDArray[np.float64], weights: NDArray[np.float64]
) -> CorrectionRate:
    if not below.sum():
        return CorrectionRate(math.nan)
    value = float(above.sum() / below.sum())
    denominators = weights @ below
    resampled = (weights @ above)[denominators > 0] / denominators[denominators > 0]
    if len(above) < 2:
        return CorrectionRate(value)
    low, high = np.percentile(resampled, _PERCENTILES)
    return CorrectionRate(value, float(low), float(high), float(resampled.std()))


def _one_minus(rate: CorrectionRate) -> CorrectionRate:
    if rate.low is None or rate.high is None:
        return rate._replace(value=1 - rate.value)
    return rate._replace(value=1 - rate.value, low=1 - rate.high, high=1 - rate.low)
