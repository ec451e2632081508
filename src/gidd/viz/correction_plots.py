"""Figures of correction: errors before and after, and its effect on a model's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gidd.viz.figure import (
    COLOURS,
    ENTROPY,
    GEN_PPL,
    LINES,
    MARKERS,
    ResultRows,
    Row,
    add_legend,
    column,
    drawing,
    finish,
    grouped,
    line_handle,
    plot_curve,
    result_handles,
    ticks_at,
)

_BEFORE: dict[str, Any] = {"marker": "*", "linestyle": "", "markerfacecolor": "white"}
_EFFECTS = (
    ("temperature", "num_changed", "Changed tokens", "temperature", "changed tokens"),
    ("num_changed", "gen_ppl", "Quality", "changed tokens", GEN_PPL),
    ("num_changed", "entropy", "Diversity", "changed tokens", ENTROPY),
    ("gen_ppl", "self_accuracy", "Self-accuracy and quality", GEN_PPL, "self-accuracy"),
)
"""Columns, title and axis labels of the panels."""
_UNCORRECTED: dict[str, Any] = {"color": "grey", "linestyle": "--", "linewidth": 1.0}
_PANELS_PER_ROW = 3


def plot_self_correction(results: Sequence[ResultRows], out: Path) -> None:
    """Plot the effect of self-correction on samples (Sec. 5.4 of the paper), a colour per result.

    Curves run over temperatures; each number of calls has a line style.
    """
    rows = [row for result in results for row in result.rows]
    calls = [name for name in grouped([row for row in rows if row.get("calls")], ["calls"])]
    with drawing(out, (12.0, 7.0)) as figure:
        for axes, (x, y, title, *labels) in zip(figure.subplots(2, 2).flat, _EFFECTS, strict=True):
            for result, colour, marker in zip(results, COLOURS, MARKERS, strict=False):
                before = [row for row in result.rows if row.get("calls") == 0]
                for name, curve in _over_temperatures(result.rows).items():
                    line = LINES[calls.index(name) % len(LINES)] if name in calls else "-"
                    style = {"color": colour, "marker": marker, "linestyle": line}
                    plot_curve(axes, curve, x, y, sort=False, **style)
                if x != "temperature":
                    plot_curve(axes, before, x, y, color=colour, zorder=4, **_BEFORE)
            if x == "temperature":
                ticks_at(axes.xaxis, column([row for row in rows if row.get("calls") != 0], x))
            finish(axes, title, *labels)
        handles, names = result_handles(results)
        if len(calls) > 1:
            lines = [LINES[i % len(LINES)] for i in range(len(calls))]
            handles += [line_handle(color="grey", linestyle=line) for line in lines]
            names += calls
        handles.append(line_handle(color="grey", **_BEFORE))
        add_legend(figure, handles, [*names, "before correction"])


def _over_temperatures(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows after correction by their number of calls, in the order of temperatures."""
    after = [row for row in rows if row.get("calls") != 0]
    order = np.argsort(column(after, "temperature"), kind="stable")
    return grouped([after[i] for i in order], ["calls"])


def plot_correction(results: Sequence[ResultRows], out: Path) -> None:
    """Plot the word error rate after correction against that before, a panel per kind of noise.

    Each method of each result has a colour; rows of clean text are the first point of all panels.
    The dashed line is text that is not corrected.
    """
    rows = [row for result in results for row in result.rows]
    noisy = [row for row in rows if row.get("rate") != 0 and isinstance(row.get("noise"), str)]
    noises = list(grouped(noisy, ["noise"])) or ["clean text"]
    methods = list(grouped(rows, ["method"]))
    curves = [(result, method) for result in results for method in methods]
    names = [
        method if len(results) == 1 else f"{result.label}: {method}" for result, method in curves
    ]
    width = min(len(noises), _PANELS_PER_ROW)
    height = -(-len(noises) // width)
    with drawing(out, (3.4 * width + 1.4, 3.3 * height + 0.7)) as figure:
        grid = list(figure.subplots(height, width, squeeze=False).flat)
        for axes, noise in zip(grid, noises, strict=False):
            for number, (result, method) in enumerate(curves):
                shown = [row for row in result.rows if _is_shown(row, noise, method)]
                plot_curve(axes, shown, "wer_before", "wer", **_style(number))
            before = column([row for row in rows if row.get("noise") == noise], "wer_before")
            if len(before := before[np.isfinite(before)]):
                axes.plot([0, before.max()], [0, before.max()], **_UNCORRECTED)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(_percent)
            finish(axes, noise, "word error rate before", "after correction")
        for axes in grid[len(noises) :]:
            axes.set_axis_off()
        handles = [line_handle(**_style(number)) for number in range(len(curves))]
        handles.append(line_handle(**_UNCORRECTED))
        labels = [*names, "not corrected"]
        add_legend(figure, handles, labels, loc="outside lower center", ncols=width + 1)


def _is_shown(row: Row, noise: str, method: str) -> bool:
    is_noise = row.get("noise") == noise or row.get("rate") == 0
    return is_noise and row.get("method") == method


def _percent(value: float, _position: int | None = None) -> str:
    return f"{100 * value:g}%"


def _style(number: int) -> dict[str, Any]:
    """Return the colour, marker and line of a curve; a line style per round of colours."""
    lap, place = divmod(number, len(COLOURS))
    line = LINES[lap % len(LINES)]
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": line}
