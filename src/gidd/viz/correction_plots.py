"""Figures of self-correction: its effect on samples, and the recovery of corrupted text."""

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
    varying,
)

_BEFORE: dict[str, Any] = {"marker": "*", "linestyle": "", "markerfacecolor": "white"}
_EFFECTS = (
    ("temperature", "num_changed", "Changed tokens", "temperature", "changed tokens"),
    ("num_changed", "gen_ppl", "Quality", "changed tokens", GEN_PPL),
    ("num_changed", "entropy", "Diversity", "changed tokens", ENTROPY),
    ("gen_ppl", "self_accuracy", "Self-accuracy and quality", GEN_PPL, "self-accuracy"),
)
"""Columns, title and axis labels of the panels."""

_RECOVERY = {
    "found": "Corrupted text that was changed",
    "restored": "Corrupted text that was restored",
    "damaged": "Correct text that was changed",
}


def plot_correction(results: Sequence[ResultRows], out: Path) -> None:
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


def plot_recovery(results: Sequence[ResultRows], out: Path) -> None:
    """Plot how much corrupted text is found and restored, and how much correct text is changed.

    Results and settings differ by colour, kinds of corruption by line style.
    """
    rows = [row for result in results for row in result.rows]
    by_setting, by_kind = varying(rows, ["setting"]), varying(rows, ["corruption"])
    kinds = list(grouped(rows, by_kind))
    with drawing(out, (12.0, 4.6)) as figure:
        handles, names = list[Any](), list[str]()
        curves: list[tuple[list[Row], dict[str, Any]]] = []
        for result, marker in zip(results, MARKERS, strict=False):
            for setting, of_setting in grouped(result.rows, by_setting).items():
                colour = COLOURS[len(handles) % len(COLOURS)]
                handles.append(line_handle(color=colour, marker=marker))
                prefix = [result.label] if len(results) > 1 or not setting else []
                names.append(", ".join([*prefix, *([setting] if setting else [])]))
                for kind, curve in grouped(of_setting, by_kind).items():
                    line = LINES[kinds.index(kind) % len(LINES)]
                    curves.append((curve, {"color": colour, "marker": marker, "linestyle": line}))
        for axes, (y, title) in zip(figure.subplots(1, 3), _RECOVERY.items(), strict=True):
            for curve, style in curves:
                plot_curve(axes, curve, "rate", y, **style)
            finish(axes, title, "fraction of corrupted text", "fraction")
            axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        if by_kind:
            lines = [LINES[i % len(LINES)] for i in range(len(kinds))]
            handles += [line_handle(color="grey", linestyle=line) for line in lines]
            names += kinds
        add_legend(figure, handles, names, loc="outside lower center", ncols=3)
