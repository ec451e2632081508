"""Differences of measurements, their standard errors, and tests of whether they are zero.

change = paired_difference(before, after)          # the same samples, measured twice
change.value, change.standard_error, change.p_value
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from gidd.evaluation.results import Measurement

SIGNIFICANCE_LEVEL: Final = 0.05
"""Two-sided: a p-value below it is called significant."""

PERMUTATIONS: Final = 20_000
"""Random sign flips of `sign_flip_p_value`: the smallest p-value is 1 / 20,001."""

_EXACT_FLIPS = 14
"""Up to this number of non-zero differences, all 2**14 sign flips are enumerated."""

_FLIPS_AT_ONCE = 1 << 21
_TINY = 1e-300
_PRECISION = 1e-15
_TERMS = 1000
"""At most, of a continued fraction; it converges in O(sqrt(degrees of freedom))."""

_NORMAL_DEGREES = 1e6
"""Above it, Student's t is the normal distribution up to t**4 / 4e6, relatively."""


class Difference(NamedTuple):
    """A difference and a two-sided test of whether it is zero."""

    value: float
    standard_error: float | None = None
    p_value: float | None = None
    """None if the standard error is unknown."""

    is_paired: bool = False
    num_pairs: int = 0

    @property
    def num_sigmas(self) -> float | None:
        """The absolute difference in standard errors."""
        if self.standard_error is None:
            return None
        return _statistic(abs(self.value), self.standard_error)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Return the mean of after - before over pairs, tested by the paired t-test."""
    return mean_difference([b - a for a, b in zip(before, after, strict=True)])


def mean_difference(values: Sequence[float]) -> Difference:
    """Return the mean of differences of pairs, tested by Student's t with n - 1 degrees."""
    value, error, count = Measurement.mean(values)
    if error is None:
        return Difference(value, None, None, True, count)
    p_value = student_t_p_value(_statistic(value, error), count - 1)
    return Difference(value, error, p_value, True, count)


def unpaired_difference(first: Measurement, second: Measurement) -> Difference:
    """Return second - first of independent measurements, tested by Welch's t-test.

    The normal distribution is used if a measurement does not say how many samples it has.
    """
    value = second.value - first.value
    if first.standard_error is None or second.standard_error is None or not math.isfinite(value):
        return Difference(value)
    errors = first.standard_error, second.standard_error
    error = math.hypot(*errors)
    statistic = _statistic(value, error)
    counts = first.num_samples, second.num_samples
    if min(counts) < 2 or not error:
        return Difference(value, error, normal_p_value(statistic))
    # Welch-Satterthwaite, in fractions of the total so that nothing overflows
    degrees = 1 / sum((e / error) ** 4 / (n - 1) for e, n in zip(errors, counts, strict=True))
    return Difference(value, error, student_t_p_value(statistic, degrees))


def sign_flip_p_value(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p-value of a sum of differences under random signs.

    If before and after are exchangeable, each difference is as likely to have the other sign. No
    distribution is assumed. With few differences all signs are enumerated; otherwise `PERMUTATIONS`
    random ones are drawn, and the observed one is counted with them.
    """
    values = np.asarray([d for d in differences if d], dtype=np.float64)
    count = len(values)
    if not count:
        return 1.0
    # a sum that equals the observed one up to rounding counts as equal
    observed = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if count <= _EXACT_FLIPS:
        codes = np.arange(1 << count)[:, None]
        signs = 1 - 2 * ((codes >> np.arange(count)) & 1)
        return float(np.mean(np.abs(signs @ values) >= observed))
    generator = np.random.default_rng(seed)
    extreme, left = 1, PERMUTATIONS
    while left:
        size = min(left, max(1, _FLIPS_AT_ONCE // count))
        signs = 1.0 - 2.0 * generator.integers(0, 2, (size, count), dtype=np.int8)
        extreme += int(np.sum(np.abs(signs @ values) >= observed))
        left -= size
    return extreme / (PERMUTATIONS + 1)


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for several tests by Holm's method.

    Those below a level are significant with at most that probability of any false positive.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def normal_p_value(z: float) -> float:
    """Return P(|Z| >= |z|) of a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


def student_t_p_value(t: float, degrees: float) -> float:
    """Return P(|T| >= |t|) of Student's t; `degrees` of freedom need not be an integer."""
    if math.isinf(t):
        return 0.0
    if degrees > _NORMAL_DEGREES:
        return normal_p_value(t)
    total = degrees + t * t
    return _incomplete_beta(degrees / total, t * t / total, degrees / 2, 0.5)


def _incomplete_beta(x: float, y: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b); y = 1 - x, which may be tiny."""
    if not x or not y:
        return x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log(y))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(y, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of I_x(a, b), DLMF 8.17.22, by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
            value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _statistic(value: float, error: float) -> float:
    """Return value / error; 0 / 0 is 0, because equal measurements do not differ."""
    if error:
        return value / error
    return math.copysign(math.inf, value) if value else 0.0
