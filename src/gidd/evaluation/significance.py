"""Differences of measurements, their standard errors, and tests of whether they are zero.

change = mean_difference([b - a for a, b in zip(before, after)])   # the same samples, twice
change.value, change.standard_error, change.p_value

p-values need scipy, which comes with `gidd[eval]`; without it they are None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, NamedTuple

import numpy as np

from gidd.common.optional import optional_package
from gidd.evaluation.results import Measurement

SIGNIFICANCE_LEVEL: Final = 0.05
"""Two-sided: a p-value below it is called significant."""

PERMUTATIONS: Final = 20_000
"""Random sign flips of `sign_flip_p_value`."""

HAS_SCIPY: Final = find_spec("scipy") is not None


class Difference(NamedTuple):
    """A difference and a two-sided test of whether it is zero."""

    value: float
    standard_error: float | None = None
    p_value: float | None = None
    """None if the standard error is unknown, or scipy is not installed."""
    is_paired: bool = False
    num_pairs: int = 0


def mean_difference(values: Sequence[float]) -> Difference:
    """Return the mean of differences of pairs, tested by the paired t-test."""
    value, error, count = Measurement.mean(values)
    if error is None:
        return Difference(value, None, None, True, count)
    return Difference(value, error, _p_value(value, error, count - 1), True, count)


def unpaired_difference(first: Measurement, second: Measurement) -> Difference:
    """Return second - first of independent measurements, tested by Welch's t-test.

    The normal distribution is used if a measurement does not say how many samples it has.
    """
    value = second.value - first.value
    if first.standard_error is None or second.standard_error is None or not math.isfinite(value):
        return Difference(value)
    errors = first.standard_error, second.standard_error
    counts = first.num_samples, second.num_samples
    error, degrees = math.hypot(*errors), math.inf
    if min(counts) > 1 and error:
        # Welch-Satterthwaite, in fractions of the total so that nothing overflows
        degrees = 1 / sum((e / error) ** 4 / (n - 1) for e, n in zip(errors, counts, strict=True))
    return Difference(value, error, _p_value(value, error, degrees))


def _p_value(value: float, error: float, degrees: float) -> float | None:
    """Test value / error; 0 / 0 is 0, because equal measurements do not differ."""
    if not HAS_SCIPY:
        return None
    return student_t_p_value(value / error if error else math.inf if value else 0.0, degrees)


def student_t_p_value(t: float, degrees: float) -> float:
    """Return P(|T| >= |t|) of Student's t, which is normal for infinite `degrees` of freedom."""
    return 2 * float(optional_package("scipy.special", "eval").stdtr(degrees, -abs(t)))


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the mean of differences under random signs.

    With few differences all signs are enumerated; otherwise `PERMUTATIONS` random ones are drawn.
    """
    values = np.array([d for d in differences if d], dtype=np.float64)
    if len(values) < 2:
        return 1.0
    found = optional_package("scipy.stats", "eval").permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=PERMUTATIONS, batch=1000, rng=0
    )
    return float(found.pvalue)


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for several tests by Holm's method."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()
