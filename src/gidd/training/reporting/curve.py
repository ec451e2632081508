"""A small picture of how the loss falls, for trackers that show images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from gidd.common.optional import optional_package
from gidd.training.reporting import log as metrics_log

_CURVES = {
    "training/loss": ("loss", "#999999", "-"),
    "training/nelbo": ("NELBO", "#56B4E9", "-"),
    "training/nll": ("NLL", "#56B4E9", "-"),
    "validation/nelbo": ("validation NELBO", "#D55E00", "o-"),
    "validation/nll": ("validation NLL", "#D55E00", "o-"),
}
"""Metric: title, colour, marker."""

_MAX_POINTS = 1000
_INCHES, _DPI = (6.4, 4.0), 100


@final
class LossCurve:
    """Points of a run, thinned out so that they stay few, and their picture."""

    def __init__(self) -> None:
        self._points = {name: _Points() for name in _CURVES}

    @classmethod
    def of_run(cls, folder: Path, start: int) -> LossCurve:
        """With the points that a run which continues after step `start` already has."""
        curve = cls()
        if start > 0 and (folder / metrics_log.METRICS_FILE).is_file():
            for line in metrics_log.read_whole(folder / metrics_log.METRICS_FILE):
                if line["step"] <= start:
                    group = "validation" if line["kind"] == "evaluation" else "training"
                    curve.add(line["step"], {f"{group}/{name}": v for name, v in line.items()})
        return curve

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep those that are drawn."""
        for name, points in self._points.items():
            if name in values:
                points.add(step, float(values[name]))

    def draw(self) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
        """A picture, [height, width, 4]."""
        Figure = optional_package("matplotlib.figure", "viz").Figure
        Canvas = optional_package("matplotlib.backends.backend_agg", "viz").FigureCanvasAgg
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel="nats per token")
        for name, (title, colour, marker) in _CURVES.items():
            points = self._points[name]
            if points.values:
                axes.plot(
                    points.steps, points.values, marker, color=colour, label=title, markersize=4
                )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        canvas = Canvas(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())


@final
class _Points:
    """At most `_MAX_POINTS`, evenly spread: when there are too many, every second goes."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []
        self._seen, self._stride = 0, 1

    def add(self, step: int, value: float) -> None:
        if self._seen % self._stride == 0:
            self.steps.append(step)
            self.values.append(value)
        self._seen += 1
        if len(self.steps) > _MAX_POINTS:
            self.steps, self.values = self.steps[::2], self.values[::2]
            self._stride *= 2
