"""Metrics of training runs over steps, read from their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gidd.common.terminal import printable
from gidd.training.reporting import log as metrics_log

_SMOOTHING = 40
"""A mean is over this fraction of all points: one in 40."""

_LARGEST = float(np.finfo(np.float32).max)
"""Larger values are infinite in training, and their sums would overflow here."""


class MetricSeries(NamedTuple):
    """A metric over the steps of a run."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def smooth(self) -> NDArray[np.float64]:
        """Return means over the neighbours of each point, fewer of them at the beginning."""
        num = len(self.values)
        point, half = np.arange(num), num // (2 * _SMOOTHING)
        reach = np.minimum(point, half)
        first, last = point - reach, np.minimum(point + reach + 1, num)
        total = np.concatenate([[0.0], np.cumsum(self.values)])
        return (total[last] - total[first]) / (last - first)


@final
@dataclass(frozen=True)
class RunLog:
    """The log of a run."""

    name: str
    lines: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> RunLog:
        """Read the log of a run, given its folder or the log file."""
        folder = path if path.is_dir() else path.parent
        return cls(printable(folder.resolve().name), metrics_log.read(path))

    def curve(self, kind: metrics_log.LineKind, name: str) -> MetricSeries:
        """Return the finite values of a metric; empty if the run has none."""
        lines = [line for line in self.lines if line["kind"] == kind and name in line]
        steps = np.array([line["step"] for line in lines], dtype=np.int64)
        values = np.array([float(line[name]) for line in lines], dtype=np.float64)
        finite = np.abs(values) <= _LARGEST  # NaN is not
        return MetricSeries(steps[finite], values[finite])


class MetricBand(NamedTuple):
    """A metric over steps in several runs: mean, smallest and largest value."""

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@final
@dataclass(frozen=True)
class RunGroup:
    """Runs that are plotted as one curve, such as runs that differ by the seed only."""

    name: str
    runs: Sequence[RunLog]

    def band(
        self, kind: metrics_log.LineKind, name: str, *, smooth: bool = False
    ) -> MetricBand | None:
        """Return a metric at the steps that all runs with this metric have; None without any."""
        curves = [run.curve(kind, name) for run in self.runs]
        curves = [curve for curve in curves if len(curve.values)]
        if smooth:
            curves = [curve._replace(values=curve.smooth()) for curve in curves]
        steps = reduce(np.intersect1d, [curve.steps for curve in curves]) if curves else []
        if not len(steps):
            return None
        rows = np.stack([_at_steps(curve, np.asarray(steps)) for curve in curves])
        return MetricBand(np.asarray(steps), rows.mean(0), rows.min(0), rows.max(0))


def _at_steps(curve: MetricSeries, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    unique, first = np.unique(curve.steps, return_index=True)
    return curve.values[first[np.searchsorted(unique, steps)]]
