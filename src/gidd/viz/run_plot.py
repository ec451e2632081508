"""Training runs: their metrics over steps, read from logs, and plots of them."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gidd.common.optional import optional_package
from gidd.common.terminal import printable
from gidd.training.reporting.log import LineKind, read as read_log
from gidd.viz.figure import COLOURS, Values, add_legend, drawing, finish, line_handle, require_few

_LIKELIHOODS = {"nelbo": "NELBO", "nll": "NLL"}  # of diffusion, and of autoregressive models
_KINDS = {"masked": "-", "replaced": "--", "kept": ":"}  # kinds of noisy tokens, their lines
_POINTS: dict[str, Any] = {"markersize": 6, "markeredgecolor": "white", "zorder": 3, "capsize": 3}
_SMOOTHING = 40  # a mean is over one in 40 of all points
_LARGEST = float(np.finfo(np.float32).max)  # larger values are infinite in training


class MetricSeries(NamedTuple):
    """A metric over the steps of a run."""

    steps: NDArray[np.int64]
    values: Values

    def smooth(self) -> Values:
        """Return means over the neighbours of each point, fewer of them at the beginning."""
        num = len(self.values)
        point, half = np.arange(num), num // (2 * _SMOOTHING)
        reach = np.minimum(point, half)
        first, last = point - reach, np.minimum(point + reach + 1, num)
        total = np.concatenate([[0.0], np.cumsum(self.values)])
        return (total[last] - total[first]) / (last - first)


class RunLog(NamedTuple):
    """The log of a run."""

    name: str
    lines: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the log of a run, given its folder or the log file."""
        folder = path if path.is_dir() else path.parent
        return cls(printable(folder.resolve().name), read_log(path))

    def curve(self, kind: LineKind, name: str) -> MetricSeries:
        """Return the finite values of a metric; empty if the run has none."""
        lines = [line for line in self.lines if line["kind"] == kind and name in line]
        steps = np.array([line["step"] for line in lines], dtype=np.int64)
        values = np.array([float(line[name]) for line in lines], dtype=np.float64)
        finite = np.abs(values) <= _LARGEST  # NaN is not
        return MetricSeries(steps[finite], values[finite])


class MetricBand(NamedTuple):
    """A metric over steps in several runs: mean, smallest and largest value."""

    steps: NDArray[np.int64]
    mean: Values
    low: Values
    high: Values


class RunGroup(NamedTuple):
    """Runs that are plotted as one curve, such as runs that differ by the seed only."""

    name: str
    runs: Sequence[RunLog]

    def band(self, kind: LineKind, name: str, *, smooth: bool = False) -> MetricBand | None:
        """Return a metric at the steps that all runs with this metric have; None without any."""
        curves = [c for c in (run.curve(kind, name) for run in self.runs) if len(c.values)]
        if smooth:
            curves = [curve._replace(values=curve.smooth()) for curve in curves]
        steps = reduce(np.intersect1d, [curve.steps for curve in curves]) if curves else []
        if not len(steps):
            return None
        columns: list[Values] = []
        for curve in curves:
            unique, first = np.unique(curve.steps, return_index=True)
            columns.append(curve.values[first[np.searchsorted(unique, steps)]])
        rows = np.stack(columns)
        return MetricBand(np.asarray(steps), rows.mean(0), rows.min(0), rows.max(0))


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
    title, handles, labels = "Likelihood", list[Any](), list[str]()
    limits: list[float] = []
    for group, colour in zip(groups, COLOURS, strict=False):
        text = group.name
        for name, title_ in _LIKELIHOODS.items():
            shown = _plot_noisy(axes, group, name, colour, limits)
            where, validation = "training", group.band("evaluation", name)
            if validation is not None:
                steps, errors = validation.steps.tolist(), None
                if len(group.runs) > 1:
                    below, above = validation.mean - validation.low, validation.high
                    errors = np.stack([below, above - validation.mean])
                elif (band := group.band("evaluation", f"{name}_se")) is not None:
                    pairs = zip(band.steps.tolist(), np.abs(band.mean).tolist(), strict=True)
                    error_at = dict(pairs)
                    errors = np.array([error_at.get(step, 0.0) for step in steps])
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
    bars = "mean and range of the runs" if is_mean else "± 1 standard error"
    axes.set_title(f"{title}, nats per token: training (line) and validation (points, {bars})")
    _finish(axes, limits)
    add_legend(figure, handles, labels, loc="outside lower center", ncols=2)


def _plot_kinds(axes: Any, groups: Sequence[RunGroup]) -> None:
    axes.set_title("NELBO by kind of noisy token")
    limits = [0.0]
    for group, colour in zip(groups, COLOURS, strict=False):
        for kind, line in _KINDS.items():
            curve = group.band("training", f"nelbo_{kind}", smooth=True)
            if curve is not None:
                marker = "D" * (len(curve.steps) == 1)
                axes.plot(curve.steps, curve.mean, line, color=colour, marker=marker)
                limits += [float(curve.mean.min()), float(curve.mean.max())]
    if axes.lines:
        handles = [line_handle(color="grey", linestyle=line) for line in _KINDS.values()]
        add_legend(axes, handles, list(_KINDS))
    _finish(axes, limits)


def _plot_metric(
    axes: Any, groups: Sequence[RunGroup], name: str, title: str, *, log: bool = False
) -> None:
    axes.set_title(title)
    limits: list[float] = []
    for group, colour in zip(groups, COLOURS, strict=False):
        _plot_noisy(axes, group, name, colour, limits)
    if log and (np.array(limits) > 0).any():
        axes.set_yscale("log")
    _finish(axes, [] if log else limits)


def _plot_noisy(
    axes: Any, group: RunGroup, name: str, colour: str, limits: list[float]
) -> MetricBand | None:
    """Plot a smoothed metric, and add the limits of its axis: rare spikes are left out."""
    smooth = group.band("training", name, smooth=True)
    if smooth is None:
        return None
    marker = "D" * (len(smooth.steps) == 1)
    axes.plot(smooth.steps, smooth.mean, color=colour, marker=marker, linewidth=1.8)
    limits += [float(smooth.low.min()), float(smooth.high.max())]
    if len(group.runs) > 1:
        style = {"color": colour, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(smooth.steps, smooth.low, smooth.high, **style)
    else:
        raw = group.runs[0].curve("training", name)
        axes.plot(*raw, color=colour, alpha=0.25, linewidth=0.8, zorder=1)
        limits += np.quantile(raw.values, [0.002, 0.998]).tolist()
    return smooth


def _finish(axes: Any, limits: Sequence[float]) -> None:
    if limits:
        low, high = min(limits), max(limits)
        margin = 0.05 * (high - low) or 0.5
        axes.set_ylim(low - margin * (low != 0), high + margin)
    if axes.lines:
        ticker = optional_package("matplotlib.ticker", "viz")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    finish(axes, "step", "")
