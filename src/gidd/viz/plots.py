"""The curves of one or several runs as a picture."""

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
"""Okabe and Ito's: told apart by every kind of colour vision."""

_LIKELIHOODS = {"nelbo": "NELBO", "nll": "NLL"}
"""A bound for diffusion models, the value itself for autoregressive ones."""

_KINDS = {"masked": "-", "replaced": "--", "kept": ":"}
"""Kind of noisy token: how its line is drawn."""

_RAW: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.8, "zorder": 1}
_SMOOTH: dict[str, Any] = {"linewidth": 1.8, "zorder": 2}
_POINTS: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "zorder": 3}
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


def draw(runs: Sequence[RunLog], out: Path) -> None:
    """Draw likelihood, loss, gradient and learning rate to a PNG file, as far as they are there.

    Args:
        runs: The runs, each in its colour.
        out: The file.
    """
    if not 1 <= len(runs) <= len(COLOURS):
        raise ConfigError(
            f"1 to {len(COLOURS)} runs fit into one picture, got {len(runs)}. "
            "Give fewer, and the others to another picture."
        )
    if out.is_dir():
        raise ConfigError(
            f"the picture must be a file, and {out} is a folder. Give e.g. {out / 'curves.png'}."
        )
    matplotlib = optional_package("matplotlib", "viz")
    figures = optional_package("matplotlib.figure", "viz")
    agg = optional_package("matplotlib.backends.backend_agg", "viz")
    with matplotlib.rc_context(_STYLE):
        figure = figures.Figure(figsize=_INCHES, layout="constrained")
        agg.FigureCanvasAgg(figure)  # needs no screen
        above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1), hspace=0.04)
        panels = below.subplots(1, 4)
        _draw_bound(above.subplots(), runs)
        _draw_metric(panels[0], runs, "loss", "Training loss")
        _draw_kinds(panels[1], runs)
        _draw_gradient(panels[2], runs)
        _draw_metric(panels[3], runs, "learning_rate", "Learning rate", zero=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as file:
            figure.savefig(file, format="png", dpi=_DPI)


def _draw_bound(axes: Any, runs: Sequence[RunLog]) -> None:
    """The likelihood per token: training light and smoothed, validation as points."""
    limits, labels, titles = _Limits(), list[_Label](), set[str]()
    for run, colour in zip(runs, COLOURS, strict=False):
        for name, title in _LIKELIHOODS.items():
            training, validation = run.curve("training", name), run.curve("evaluation", name)
            _draw_noisy(axes, training, colour, limits)
            best = validation if len(validation.values) else training
            if not len(best.values):
                continue
            titles.add(title)
            where = "validation" if best is validation else "training"
            if best is validation:
                axes.plot(*validation, "o", color=colour, **_POINTS)
                limits.show(validation.values)
            value = float(best.values[-1] if best is validation else best.smooth()[-1])
            text = f"{where} {title} {value:.3f}\nperplexity {np.exp(min(value, 700.0)):,.1f}"
            labels.append(_Label(value, text if len(runs) == 1 else f"{run.name}\n{text}", colour))
    what = " or ".join(sorted(titles)) or "Likelihood"
    axes.set_title(f"{what}, nats per token: training (line) and validation (points)")
    _finish(axes, limits, labels)


def _draw_kinds(axes: Any, runs: Sequence[RunLog]) -> None:
    """What each kind of noisy token adds to the NELBO, smoothed."""
    axes.set_title("NELBO by kind of noisy token")
    limits, labels = _Limits(zero=True), list[_Label]()
    for run, run_colour in zip(runs, COLOURS, strict=False):
        for (kind, line), kind_colour in zip(_KINDS.items(), COLOURS, strict=False):
            curve = run.curve("training", f"nelbo_{kind}")
            if len(curve.values):
                smooth = curve.smooth()
                colour = kind_colour if len(runs) == 1 else run_colour
                axes.plot(curve.steps, smooth, line, color=colour, marker=_marker(curve))
                limits.show(smooth)
                if run is runs[0]:
                    one = len(runs) == 1
                    labels.append(_Label(float(smooth[-1]), kind, colour if one else "black"))
    _finish(axes, limits, labels)


def _draw_metric(
    axes: Any, runs: Sequence[RunLog], name: str, title: str, *, zero: bool = False
) -> None:
    """One training metric."""
    axes.set_title(title)
    limits = _Limits(zero=zero)
    for run, colour in zip(runs, COLOURS, strict=False):
        _draw_noisy(axes, run.curve("training", name), colour, limits)
    _finish(axes, limits, [])


def _draw_gradient(axes: Any, runs: Sequence[RunLog]) -> None:
    """The norm of the gradient on a logarithmic axis: spikes are seen and do not hide the rest."""
    axes.set_title("Gradient norm")
    for run, colour in zip(runs, COLOURS, strict=False):
        curve = run.curve("training", "grad_norm")
        positive = curve.values > 0
        steps, logs = curve.steps[positive], np.log(curve.values[positive])
        if len(steps):
            norm = MetricSeries(steps, logs)
            style = _SMOOTH | {"color": colour, "marker": _marker(norm)}
            axes.semilogy(steps, np.exp(logs), color=colour, **_RAW)
            axes.semilogy(steps, np.exp(norm.smooth()), **style)
    ticker = optional_package("matplotlib.ticker", "viz")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    _finish(axes, None, [])


def _draw_noisy(axes: Any, curve: MetricSeries, colour: str, limits: _Limits) -> None:
    if len(curve.values):
        smooth = curve.smooth()
        axes.plot(*curve, color=colour, **_RAW)
        axes.plot(curve.steps, smooth, color=colour, marker=_marker(curve), **_SMOOTH)
        limits.show(smooth)
        limits.may_cut(curve.values)


def _marker(curve: MetricSeries) -> str:
    """A line needs two points; one alone is a diamond, as circles are validation."""
    return "D" if len(curve.values) == 1 else ""


@final
class _Limits:
    """Which values an axis shows: all that are told to, and of the noise all but rare spikes."""

    def __init__(self, *, zero: bool = False) -> None:
        self._shown: list[float] = [0.0] if zero else []
        self._noise: list[NDArray[np.float64]] = []

    def show(self, values: NDArray[np.float64]) -> None:
        if len(values):
            self._shown += [float(values.min()), float(values.max())]

    def may_cut(self, values: NDArray[np.float64]) -> None:
        if len(values):
            self._noise.append(values)
            self.show(np.quantile(values, [0.002, 0.998]))

    def apply(self, axes: Any) -> None:
        low, high = min(self._shown), max(self._shown)
        margin = 0.05 * (high - low) or 0.5
        bottom, top = (low if low == 0 else low - margin), high + margin
        axes.set_ylim(bottom, top)
        cut = sum(int(((v < bottom) | (v > top)).sum()) for v in self._noise)
        if cut:
            text = f"{cut:,} single values lie outside"
            axes.text(
                0.99, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize="small"
            )


_LINE_POINTS = 12.0
"""Height of a line of a label."""


class _Label(NamedTuple):
    value: float
    text: str
    colour: str


def _finish(axes: Any, limits: _Limits | None, labels: Sequence[_Label]) -> None:
    """Axes, and labels beside the ends of their curves, moved apart where they would overlap."""
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
        axes.annotate(
            label.text,
            (1.01, place),
            xycoords="axes fraction",
            color=label.colour,
            va="center",
            fontsize="small",
        )
