"""Power laws of compute-efficient frontiers, with bootstrap intervals, and where two cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PERCENTILES = (2.5, 97.5)
_LARGEST_LOG = 700.0
"""exp of more overflows."""


class RunCurve(NamedTuple):
    """The points of one run."""

    flops: Floats
    nelbo: Floats


class PowerLaw(NamedTuple):
    """NELBO = coefficient * FLOPs ** exponent."""

    exponent: float
    log_coefficient: float

    def nelbo(self, flops: Floats) -> Floats:
        """Return the NELBO at some FLOPs."""
        return np.exp(self.log_coefficient + self.exponent * np.log(flops))


class Interval(NamedTuple):
    """A 95% interval: percentiles of the bootstrap."""

    low: float
    high: float


def on_frontier(flops: Floats, nelbo: Floats) -> NDArray[np.bool_]:
    """Return which points are pareto-optimal: none has as few FLOPs and as low a NELBO.

    Of equal points one is kept.
    """
    order = np.lexsort((nelbo, flops))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(nelbo[order])[:-1]])
    found = np.zeros(len(flops), dtype=np.bool_)
    found[order] = nelbo[order] < best_before
    return found


def fit_frontier(curves: Sequence[RunCurve]) -> PowerLaw | None:
    """Fit log NELBO = a + b log FLOPs to the frontier of some runs by least squares.

    This is the fit of App. A of the paper; there is no irreducible loss to subtract. Returns None
    if all points of the frontier have the same FLOPs.
    """
    flops, nelbo = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    keep = on_frontier(flops, nelbo)
    x, y = np.log(flops[keep]), np.log(nelbo[keep])
    centred = x - x.mean()
    spread = float((centred**2).sum())
    if len(x) < 2 or spread < 1e-12:
        return None
    exponent = float((centred * y).sum()) / spread
    return PowerLaw(exponent, float(y.mean()) - exponent * float(x.mean()))


def bootstrap_fits(curves: Sequence[RunCurve], num: int, seed: int) -> list[PowerLaw]:
    """Fit the frontiers of `num` resamples of the runs; points of a run stay together.

    Resamples whose frontier does not allow a fit are left out. A single run has no other resample:
    the list is empty.
    """
    if len(curves) < 2:
        return []
    generator = np.random.default_rng(seed)
    choices = generator.integers(len(curves), size=(num, len(curves)))
    fits = (fit_frontier([curves[i] for i in chosen]) for chosen in choices)
    return [fit for fit in fits if fit is not None]


def interval(values: Sequence[float]) -> Interval | None:
    """Return the 95% percentile interval; None without values. Infinite values are allowed."""
    if not values:
        return None
    # percentiles between neighbours would be NaN where one of them is infinite
    low, high = np.percentile(values, _PERCENTILES, method="nearest")
    return Interval(float(low), float(high))


class Crossing(NamedTuple):
    """Where the fit with the steeper slope becomes the lower one."""

    flops: float
    """Infinite if beyond what a float can hold."""

    interval: Interval | None
    """Infinite ends: resamples in which the other fit is steeper, so that this one never wins."""


def crossing(
    steep: PowerLaw, flat: PowerLaw, resampled: Sequence[tuple[PowerLaw, PowerLaw]]
) -> Crossing:
    """Return the FLOPs above which `steep` is lower; `steep` must have the lower exponent."""
    flops = [_crossing(*pair) for pair in resampled]
    return Crossing(_crossing(steep, flat), interval(flops))


def _crossing(steep: PowerLaw, flat: PowerLaw) -> float:
    difference = flat.exponent - steep.exponent
    if difference <= 0:
        return math.inf
    log_flops = (steep.log_coefficient - flat.log_coefficient) / difference
    return math.exp(log_flops) if log_flops < _LARGEST_LOG else math.inf
