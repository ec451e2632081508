"""Ratios of sums, such as nats per token, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Ratio(NamedTuple):
    """A ratio of two sums over independent units."""

    value: float
    standard_error: float | None
    """Linearized (delta method); None for a single unit, which does not show it."""


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return sum(y) / sum(x) over independent pairs (y, x); NaN if sum(x) is 0."""
    count, total = len(numerators), math.fsum(denominators)
    if not total:
        return Ratio(math.nan, None)
    ratio = math.fsum(numerators) / total
    pairs = zip(numerators, denominators, strict=True)
    squares = math.fsum((y - ratio * x) ** 2 for y, x in pairs)
    return Ratio(ratio, math.sqrt(squares * count / (count - 1)) / total if count > 1 else None)
