"""Plot the curves of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gidd.common import files
from gidd.common.optional import optional_package
from gidd.errors import ConfigError
from gidd.viz.run_log import MetricSeries, RunLog

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The Okabe-Ito palette: distinguishable with every kind of colour vision."""

_LIKELIHOODS = {"nelbo": "NELBO", "nll": "NLL"}
"""Metric -> label: a bound for diffusion models, the exact value for autoregressive ones."""

_KINDS = {"masked": "-", "replaced": "--", "kept": ":"}
"""Kind of noisy token -> line style."""

_RAW: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.8, "zorder": 1}
_SMOOTH: dict[str, Any] = {"linewidth": 1.8, "zorder": 2}
_POINTS: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "zorder": 3}
_LABEL: dict[str, Any] = {"xycoords": "axes fraction", "va": "center", "fontsize": "small"}
_LABEL["parse_math"] = False  # names of runs may have dollar signs
_INCHES, _DPI = (12.0, 7.0), 150
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "axes.xmargin": 0.01,
    "font.size": 10.0,
    "grid.alpha": 0.25,
}


def plot_runs(runs: Sequence[RunLog], out: Path) -> None:
    """Plot likelihood, loss, gradient norm and learning rate, where logged, to a PNG file."""
    if not 1 <= len(runs) <= len(COLOURS):
        raise ConfigError(
            f"a plot must have 1 to {len(COLOURS)} runs, got {len(runs)}. "
            "Plot the others to another file."
        )
    if out.is_dir():
        raise ConfigError(
            f"out must be a file, but {out} is a folder. Use e.g. {out / 'curves.png'}."
        )
    matplotlib = optional_package("matplotlib", "viz")
    figures = optional_package("matplotlib.figure", "viz")
    agg = optional_package("matplotlib.backends.backend_agg", "viz")
    with matplotlib.rc_context(_STYLE):
        figure = figures.Figure(figsize=_INCHES, layout="constrained")
        agg.FigureCanvasAgg(figure)  # needs no display
        above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1), hspace=0.04)
        panels = below.subplots(1, 4)
        _plot_likelihood(above.subplots(), runs)
        _plot_metric(panels[0], runs, "loss", "Training loss")
        _plot_kinds(panels[1], runs)
        _plot_gradient(panels[2], runs)
        _plot_metric(panels[3], runs, "learning_rate", "Learning rate", zero=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as file:
            figure.savefig(file, format="png", dpi=_DPI)


def _plot_likelihood(axes: Any, runs: Sequence[RunLog]) -> None:
    """Plot the likelihood per token: training raw and smoothed, validation as points."""
    limits, labels, titles = _Limits(), list[_Label](), set[str]()
    for run, colour in zip(runs, COLOURS, strict=False):
        for name, title in _LIKELIHOODS.items():
            training, validation = run.curve("training", name), run.curve("evaluation", name)
            _plot_noisy(axes, training, colour, limits)
            if len(validation.values):
                axes.plot(*validation, "o", color=colour, **_POINTS)
                limits.include(validation.values)
                where, value = "validation", float(validation.values[-1])
            elif len(training.values):
                where, value = "training", float(training.smooth()[-1])
            else:
                continue
            titles.add(title)
            text = f"{where} {title} {value:.3f}\nperplexity {np.exp(min(value, 700.0)):,.1f}"
            labels.append(_Label(value, text if len(runs) == 1 else f"{run.name}\n{text}", colour))
    what = " or ".join(sorted(titles)) or "Likelihood"
    axes.set_title(f"{what}, nats per token: training (line) and validation (points)")
    _finish(axes, limits, labels)


def _plot_kinds(axes: Any, runs: Sequence[RunLog]) -> None:
    """Plot the smoothed contribution of each kind of noisy token to the NELBO."""
    axes.set_title("NELBO by kind of noisy token")
    limits, labels, is_single = _Limits(zero=True), list[_Label](), len(runs) == 1
    for run, run_colour in zip(runs, COLOURS, strict=False):
        for (kind, line), kind_colour in zip(_KINDS.items(), COLOURS, strict=False):
            curve = run.curve("training", f"nelbo_{kind}")
            if len(curve.values):
                smooth = curve.smooth()
                colour = kind_colour if is_single else run_colour
                axes.plot(curve.steps, smooth, line, color=colour, marker=_marker(curve))
                limits.include(smooth)
                if run is runs[0]:
                    labels.append(_Label(smooth[-1], kind, colour if is_single else "black"))
    _finish(axes, limits, labels)


def _plot_metric(
    axes: Any, runs: Sequence[RunLog], name: str, title: str, *, zero: bool = False
) -> None:
    """Plot one training metric."""
    axes.set_title(title)
    limits = _Limits(zero=zero)
    for run, colour in zip(runs, COLOURS, strict=False):
        _plot_noisy(axes, run.curve("training", name), colour, limits)
    _finish(axes, limits)


def _plot_gradient(axes: Any, runs: Sequence[RunLog]) -> None:
    """Plot the gradient norm on a log scale, where spikes do not hide the rest."""
    axes.set_title("Gradient norm")
    for run, colour in zip(runs, COLOURS, strict=False):
        curve = run.curve("training", "grad_norm")
        positive = curve.values > 0
        logs = MetricSeries(curve.steps[positive], np.log(curve.values[positive]))
        if len(logs.values):
            smooth = np.exp(logs.smooth())
            axes.semilogy(logs.steps, np.exp(logs.values), color=colour, **_RAW)
            axes.semilogy(logs.steps, smooth, color=colour, marker=_marker(logs), **_SMOOTH)
    ticker = optional_package("matplotlib.ticker", "viz")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    _finish(axes)


def _plot_noisy(axes: Any, curve: MetricSeries, colour: str, limits: _Limits) -> None:
    if len(curve.values):
        smooth = curve.smooth()
        axes.plot(*curve, color=colour, **_RAW)
        axes.plot(curve.steps, smooth, color=colour, marker=_marker(curve), **_SMOOTH)
        limits.include(smooth)
        limits.include_quantiles(curve.values)


def _marker(curve: MetricSeries) -> str:
    """Return a diamond for a single point, which has no line; circles are for validation."""
    return "D" if len(curve.values) == 1 else ""


@final
class _Limits:
    """Limits of an axis: all smoothed values, and raw values except for rare spikes."""

    def __init__(self, *, zero: bool = False) -> None:
        self._included: list[float] = [0.0] if zero else []
        self._raw: list[NDArray[np.float64]] = []

    def include(self, values: NDArray[np.float64]) -> None:
        self._included += [float(values.min()), float(values.max())]

    def include_quantiles(self, values: NDArray[np.float64]) -> None:
        self._raw.append(values)
        self.include(np.quantile(values, [0.002, 0.998]))

    def apply(self, axes: Any) -> None:
        low, high = min(self._included), max(self._included)
        margin = 0.05 * (high - low) or 0.5
        bottom, top = (low if low == 0 else low - margin), high + margin
        axes.set_ylim(bottom, top)
        cut = sum(int(((v < bottom) | (v > top)).sum()) for v in self._raw)
        if cut:
            text = f"{cut:,} values outside the axis"
            axes.text(
                0.99, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize="small"
            )


_LINE_POINTS = 12.0
"""Height of a line of a label."""


class _Label(NamedTuple):
    value: float
    text: str
    colour: str


def _finish(axes: Any, limits: _Limits | None = None, labels: Sequence[_Label] = ()) -> None:
    """Set up the axes, and place labels at the ends of their curves without overlap."""
    if not axes.lines:
        axes.text(0.5, 0.5, "not in the log", transform=axes.transAxes, ha="center", color="grey")
        axes.set(xticks=[], yticks=[])
        return
    if limits is not None:
        limits.apply(axes)
    ticker = optional_package("matplotlib.ticker", "viz")
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    bottom, top = axes.get_ylim()
    height = 72 * axes.figure.bbox_relative.height * _INCHES[1]
    free = -np.inf
    for label in sorted(labels):
        half = _LINE_POINTS / 2 * (label.text.count("\n") + 1.5) / height
        place = max((label.value - bottom) / (top - bottom), free + half)
        free = place + half
        axes.annotate(label.text, (1.01, place), color=label.colour, **_LABEL)
