"""Plot the curves of training runs, each alone or as the mean of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gidd.common.optional import optional_package
from gidd.viz.figure import COLOURS, drawing, plain_ticks, require_few
from gidd.viz.run_log import MetricBand, RunGroup, RunLog

_LIKELIHOODS = {"nelbo": "NELBO", "nll": "NLL"}
"""Metric -> label: a bound for diffusion models, the exact value for autoregressive ones."""

_KINDS = {"masked": "-", "replaced": "--", "kept": ":"}
"""Kind of noisy token -> line style."""

_RAW: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.8, "zorder": 1}
_SMOOTH: dict[str, Any] = {"linewidth": 1.8, "zorder": 2}
_BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0, "zorder": 1}
_POINTS: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "zorder": 3, "capsize": 3}
_LABEL: dict[str, Any] = {"xycoords": "axes fraction", "va": "center", "fontsize": "small"}
_LABEL["parse_math"] = False  # names of runs may have dollar signs
_INCHES = (12.0, 7.0)


def plot_runs(runs: Sequence[RunLog | RunGroup], out: Path) -> None:
    """Plot likelihood, loss, gradient norm and learning rate, where logged, to a PNG file.

    A group of runs is drawn as the mean of its runs, with a band from the smallest to the largest.
    """
    require_few(len(runs), "runs")
    groups = [RunGroup(run.name, [run]) if isinstance(run, RunLog) else run for run in runs]
    with drawing(out, _INCHES) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1), hspace=0.04)
        panels = below.subplots(1, 4)
        _plot_likelihood(above.subplots(), groups)
        _plot_metric(panels[0], groups, "loss", "Training loss")
        _plot_kinds(panels[1], groups)
        _plot_gradient(panels[2], groups)
        _plot_metric(panels[3], groups, "learning_rate", "Learning rate", zero=True)


def _plot_likelihood(axes: Any, groups: Sequence[RunGroup]) -> None:
    """Plot the likelihood per token: training raw and smoothed, validation as points."""
    limits, labels, titles, notes = _Limits(), list[_Label](), set[str](), set[str]()
    for group, colour in zip(groups, COLOURS, strict=False):
        for name, title in _LIKELIHOODS.items():
            training = _plot_noisy(axes, group, name, colour, limits)
            validation = group.band("evaluation", name)
            if validation is not None:
                bars = _error_bars(group, name, validation)
                notes |= set(bars)
                limits.include(validation.low)
                limits.include(validation.high)
                style = {"color": colour, **_POINTS} | ({"markersize": 5.5} if bars else {})
                errors = next(iter(bars.values()), None)
                axes.errorbar(validation.steps, validation.mean, errors, fmt="o", **style)
                where, value = "validation", float(validation.mean[-1])
            elif training is not None:
                where, value = "training", float(training.mean[-1])
            else:
                continue
            titles.add(title)
            text = f"{where} {title} {value:.3f}\nperplexity {np.exp(min(value, 700.0)):,.1f}"
            labels.append(
                _Label(value, text if len(groups) == 1 else f"{group.name}\n{text}", colour)
            )
    what = " or ".join(sorted(titles)) or "Likelihood"
    title = f"{what}, nats per token: training (line) and validation (points)"
    if any(len(group.runs) > 1 for group in groups):
        notes.add("mean and range of the runs")
    axes.set_title("; ".join([title, *sorted(notes)]))
    _finish(axes, limits, labels)


def _error_bars(
    group: RunGroup, name: str, validation: MetricBand
) -> dict[str, NDArray[np.float64]]:
    """Return what error bars mean, and their lengths: of one run its standard errors."""
    if len(group.runs) > 1:
        sides = validation.mean - validation.low, validation.high - validation.mean
        return {"mean and range of the runs": np.stack(sides)}
    errors = group.band("evaluation", f"{name}_se")
    if errors is None:
        return {}
    by_step = dict(zip(errors.steps.tolist(), np.abs(errors.mean).tolist(), strict=True))
    lengths = np.array([by_step.get(step, 0.0) for step in validation.steps.tolist()])
    return {"bars: ± 1 standard error": lengths}


def _plot_kinds(axes: Any, groups: Sequence[RunGroup]) -> None:
    """Plot the smoothed contribution of each kind of noisy token to the NELBO."""
    axes.set_title("NELBO by kind of noisy token")
    limits, labels, is_single = _Limits(zero=True), list[_Label](), len(groups) == 1
    for group, group_colour in zip(groups, COLOURS, strict=False):
        for (kind, line), kind_colour in zip(_KINDS.items(), COLOURS, strict=False):
            curve = group.band("training", f"nelbo_{kind}", smooth=True)
            if curve is not None:
                colour = kind_colour if is_single else group_colour
                axes.plot(curve.steps, curve.mean, line, color=colour, marker=_marker(curve))
                limits.include(curve.mean)
                if group is groups[0]:
                    end = float(curve.mean[-1])
                    labels.append(_Label(end, kind, colour if is_single else "black"))
    _finish(axes, limits, labels)


def _plot_metric(
    axes: Any, groups: Sequence[RunGroup], name: str, title: str, *, zero: bool = False
) -> None:
    """Plot one training metric."""
    axes.set_title(title)
    limits = _Limits(zero=zero)
    for group, colour in zip(groups, COLOURS, strict=False):
        _plot_noisy(axes, group, name, colour, limits)
    _finish(axes, limits)


def _plot_gradient(axes: Any, groups: Sequence[RunGroup]) -> None:
    """Plot the gradient norm on a log scale, where spikes do not hide the rest."""
    axes.set_title("Gradient norm")
    axes.set_yscale("log")
    for group, colour in zip(groups, COLOURS, strict=False):
        curve = group.band("training", "grad_norm", smooth=True, log=True)
        if curve is None:
            continue
        axes.plot(curve.steps, curve.mean, color=colour, marker=_marker(curve), **_SMOOTH)
        if len(group.runs) > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, color=colour, **_BAND)
        else:
            raw = group.runs[0].curve("training", "grad_norm")
            positive = raw.values > 0
            axes.plot(raw.steps[positive], raw.values[positive], color=colour, **_RAW)
    plain_ticks(axes.yaxis)
    _finish(axes)


def _plot_noisy(
    axes: Any, group: RunGroup, name: str, colour: str, limits: _Limits
) -> MetricBand | None:
    """Plot a smoothed training metric over the raw one or, of several runs, over their range."""
    smooth = group.band("training", name, smooth=True)
    if smooth is None:
        return None
    style = {"color": colour, "marker": _marker(smooth), **_SMOOTH}
    axes.plot(smooth.steps, smooth.mean, **style)
    if len(group.runs) > 1:
        axes.fill_between(smooth.steps, smooth.low, smooth.high, color=colour, **_BAND)
        limits.include(smooth.low)
        limits.include(smooth.high)
    else:
        raw = group.runs[0].curve("training", name)
        axes.plot(*raw, color=colour, **_RAW)
        limits.include(smooth.mean)
        limits.include_quantiles(raw.values)
    return smooth


def _marker(curve: MetricBand) -> str:
    """Return a diamond for a single point, which has no line; circles are for validation."""
    return "D" if len(curve.steps) == 1 else ""


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
