"""Metrics of training runs over steps, read from their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gidd.common.terminal import printable
from gidd.training.reporting import log as metrics_log

_SMOOTHING = 40
"""The smoothing window is this fraction of all points: one in 40."""

_LARGEST = float(np.finfo(np.float32).max)
"""Larger values are infinite in training, and their sums would overflow here."""


class MetricSeries(NamedTuple):
    """A metric over the steps of a run."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def smooth(self) -> NDArray[np.float64]:
        """Return means over a window around each point, with a smaller window at the beginning."""
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
