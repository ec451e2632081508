"""Measurements as ratios of sums over rows, such as nats per token, with their standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

_LARGEST = 1e100
"""Larger numbers are of no evaluation, and their products could overflow."""


class RatioOfSums(NamedTuple):
    """A ratio of sums over independent rows."""

    value: float
    influences: list[float]
    """How much each row moves the ratio, to first order (delta method)."""

    @property
    def standard_error(self) -> float | None:
        """The standard error; None for a single row, which does not show it."""
        count = len(self.influences)
        return statistics.stdev(self.influences) / math.sqrt(count) if count > 1 else None


def ratio_of_sums(
    numerators: ArrayLike, denominators: ArrayLike, *, exponential: bool = False
) -> RatioOfSums:
    """Return sum(numerators) / sum(denominators) or its exponential; NaN if they sum to 0."""
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    weight = float(below.sum())
    if not weight > 0:
        return RatioOfSums(math.nan, [])
    ratio = float(above.sum()) / weight
    value = math.exp(min(ratio, 700.0)) if exponential else ratio
    moved = (above - ratio * below) * (len(above) / weight) * (value if exponential else 1.0)
    return RatioOfSums(value, moved.tolist())


class RowRatio(NamedTuple):
    """How a measurement follows from the rows of a result: the columns of a ratio of sums."""

    numerator: str
    denominator: str | None = None
    """None for a mean over the rows that have the numerator."""
    unit: float = 1.0
    """What the numerator is divided by, such as log(2) for bits."""
    is_weighted: bool = False
    """Whether the numerator is a mean per denominator, to be multiplied by it."""
    is_exponential: bool = False

    def over(self, rows: Sequence[Mapping[str, Any]]) -> RatioOfSums:
        """Return the measurement over some rows; a row without the columns has no weight."""
        terms = np.array([self._term(row) for row in rows]).reshape(-1, 2)
        return ratio_of_sums(*terms.T, exponential=self.is_exponential)

    def _term(self, row: Mapping[str, Any]) -> tuple[float, float]:
        above = row.get(self.numerator)
        below = 1.0 if self.denominator is None else row.get(self.denominator)
        if not (_is_number(above) and _is_number(below)):
            return 0.0, 0.0
        return above * (below if self.is_weighted else 1.0) / self.unit, float(below)


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number or a truth value, and not too large."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST


_NATS, _BITS = RowRatio("nelbo", "tokens"), RowRatio("nelbo", "bytes", math.log(2))
RATIOS: Final[dict[str, RowRatio]] = {
    "nelbo": _NATS,
    "ppl": _NATS._replace(is_exponential=True),
    "bits_per_token": _NATS._replace(unit=math.log(2)),
    "bits_per_byte": _BITS,
    "nelbo_corpus": _NATS,
    "ppl_corpus": _NATS._replace(is_exponential=True),
    "bits_per_byte_corpus": _BITS,
    "gen_ppl": RowRatio("gen_nll", "grader_tokens", is_weighted=True, is_exponential=True),
}
"""Measurements of this library that are not means of the column of their name."""
