"""Plot the curves of training runs, each alone or as the mean of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gidd.common.optional import optional_package
from gidd.viz.figure import COLOURS, add_legend, drawing, line_handle, plain_ticks, require_few
from gidd.viz.run_log import MetricBand, RunGroup, RunLog

_LIKELIHOODS = {"nelbo": "NELBO", "nll": "NLL"}
"""Metric -> label: a bound for diffusion models, the exact value for autoregressive ones."""

_KINDS = {"masked": "-", "replaced": "--", "kept": ":"}
"""Kind of noisy token -> line style."""

_POINTS: dict[str, Any] = {"markersize": 6, "markeredgecolor": "white", "zorder": 3, "capsize": 3}


def plot_runs(runs: Sequence[RunLog | RunGroup], out: Path) -> None:
    """Plot likelihood, loss, gradient norm and learning rate, where logged, to a file.

    Metrics of training are smoothed, over the raw values of one run or the range of several runs.
    """
    require_few(len(runs), "runs")
    groups = [RunGroup(run.name, [run]) if isinstance(run, RunLog) else run for run in runs]
    with drawing(out, (12.0, 7.5)) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1), hspace=0.04)
        _plot_likelihood(above.subplots(), groups, figure)
        panels = below.subplots(1, 4)
        _plot_metric(panels[0], groups, "loss", "Training loss")
        _plot_kinds(panels[1], groups)
        _plot_metric(panels[2], groups, "grad_norm", "Gradient norm", log=True)
        _plot_metric(panels[3], groups, "learning_rate", "Learning rate")


def _plot_likelihood(axes: Any, groups: Sequence[RunGroup], figure: Any) -> None:
    """Plot the likelihood per token: training as a line, validation as points with errors."""
    title, handles, labels = "Likelihood", list[Any](), list[str]()
    limits: list[float] = []
    for group, colour in zip(groups, COLOURS, strict=False):
        text = group.name
        for name, title_ in _LIKELIHOODS.items():
            shown = _plot_noisy(axes, group, name, colour, limits)
            where, validation = "training", group.band("evaluation", name)
            if validation is not None:
                errors = _error_bars(group, name, validation)
                style = {"color": colour, "fmt": "o", **_POINTS}
                axes.errorbar(validation.steps, validation.mean, errors, **style)
                limits += [float(validation.low.min()), float(validation.high.max())]
                where, shown = "validation", validation
            if shown is not None:
                title, value = title_, float(shown.mean[-1])
                perplexity = np.exp(min(value, 700.0))
                text += f": {where} {title_} {value:.3f}, perplexity {perplexity:,.1f}"
        handles.append(line_handle(color=colour))
        labels.append(text)
    is_mean = any(len(group.runs) > 1 for group in groups)
    errors = "mean and range of the runs" if is_mean else "± 1 standard error"
    axes.set_title(f"{title}, nats per token: training (line) and validation (points, {errors})")
    _finish(axes, limits)
    add_legend(figure, handles, labels, loc="outside lower center", ncols=2)


def _error_bars(group: RunGroup, name: str, validation: MetricBand) -> NDArray[np.float64] | None:
    """Return the range of several runs around their mean, or the standard errors of one run."""
    if len(group.runs) > 1:
        return np.stack([validation.mean - validation.low, validation.high - validation.mean])
    errors = group.band("evaluation", f"{name}_se")
    if errors is None:
        return None
    at = dict(zip(errors.steps.tolist(), np.abs(errors.mean).tolist(), strict=True))
    return np.array([at.get(step, 0.0) for step in validation.steps.tolist()])


def _plot_kinds(axes: Any, groups: Sequence[RunGroup]) -> None:
    """Plot the smoothed contribution of each kind of noisy token to the NELBO."""
    axes.set_title("NELBO by kind of noisy token")
    limits = [0.0]
    for group, colour in zip(groups, COLOURS, strict=False):
        for kind, line in _KINDS.items():
            curve = group.band("training", f"nelbo_{kind}", smooth=True)
            if curve is not None:
                axes.plot(curve.steps, curve.mean, line, color=colour, marker=_marker(curve))
                limits += [float(curve.mean.min()), float(curve.mean.max())]
    if axes.lines:
        handles = [line_handle(color="grey", linestyle=line) for line in _KINDS.values()]
        add_legend(axes, handles, list(_KINDS))
    _finish(axes, limits)


def _plot_metric(
    axes: Any, groups: Sequence[RunGroup], name: str, title: str, *, log: bool = False
) -> None:
    """Plot one training metric, on a log scale if spikes would hide the rest."""
    axes.set_title(title)
    limits: list[float] = []
    for group, colour in zip(groups, COLOURS, strict=False):
        _plot_noisy(axes, group, name, colour, limits)
    _finish(axes, [] if log else limits)
    if log and (np.array(limits) > 0).any():
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)


def _plot_noisy(
    axes: Any, group: RunGroup, name: str, colour: str, limits: list[float]
) -> MetricBand | None:
    """Plot a smoothed metric, and add the limits of its axis: rare spikes are left out."""
    smooth = group.band("training", name, smooth=True)
    if smooth is None:
        return None
    axes.plot(smooth.steps, smooth.mean, color=colour, marker=_marker(smooth), linewidth=1.8)
    limits += [float(smooth.low.min()), float(smooth.high.max())]
    if len(group.runs) > 1:
        style = {"color": colour, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(smooth.steps, smooth.low, smooth.high, **style)
    else:
        raw = group.runs[0].curve("training", name)
        axes.plot(*raw, color=colour, alpha=0.25, linewidth=0.8, zorder=1)
        limits += np.quantile(raw.values, [0.002, 0.998]).tolist()
    return smooth


def _marker(curve: MetricBand) -> str:
    """Return a diamond for a single point, which has no line; circles are for validation."""
    return "D" if len(curve.steps) == 1 else ""


def _finish(axes: Any, limits: Sequence[float]) -> None:
    """Set up the axes; say so if nothing was drawn."""
    if not axes.lines:
        axes.text(0.5, 0.5, "not in the log", transform=axes.transAxes, ha="center", color="grey")
        axes.set(xticks=[], yticks=[])
        return
    if limits:
        low, high = min(limits), max(limits)
        margin = 0.05 * (high - low) or 0.5
        axes.set_ylim(low - margin * (low != 0), high + margin)
    ticker = optional_package("matplotlib.ticker", "viz")
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
