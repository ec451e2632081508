"""Figure of scaling: NELBO against training FLOPs, frontiers, power laws and their crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from gidd.viz.figure import (
    COLOURS,
    MARKERS,
    ResultRows,
    Row,
    add_legend,
    column,
    drawing,
    finish,
    grouped,
    line_handle,
    plain_ticks,
    plot_curve,
    require_few,
)

_FURTHEST = 100.0
"""A crossing within this factor of the largest FLOPs is shown, and fits are extended to it."""


def plot_scaling(results: Sequence[ResultRows], out: Path) -> None:
    """Plot validations on log axes (App. A of the paper).

    Faint points are all validations, strong ones the compute-efficient frontier. Lines are fits,
    with the 95% bootstrap interval as a band; dashes extrapolate them to their crossing.
    """
    series = {
        f"{result.label}: {name}" if len(results) > 1 else name: (
            rows,
            _fields(_fields(result.details.get("fits")).get(name)),
        )
        for result in results
        for name, rows in _series(result.rows).items()
    }
    require_few(len(series), "series")
    flops = column([row for result in results for row in result.rows], "flops")
    crossings = [c for r in results for c in r.details.get("crossings") or ()]
    shown = [c for c in crossings if flops.min() < _number(c, "flops") < _FURTHEST * flops.max()]
    end = max([float(flops.max()), *(1.3 * _number(c, "flops") for c in shown)])
    with drawing(out, (10.0, 6.5)) as figure:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log")
        handles = [
            _plot_series(axes, rows, fit, end, {"color": colour, "marker": marker})
            for (rows, fit), colour, marker in zip(series.values(), COLOURS, MARKERS, strict=False)
        ]
        for number, crossing in enumerate(shown):
            _plot_crossing(axes, crossing, 0.98 - 0.08 * (number % 6))
        finish(
            axes, "Compute-efficient frontier", "training FLOPs", "validation NELBO, nats per token"
        )
        plain_ticks(axes.yaxis)
        labels = [_describe(name, fit) for name, (_, fit) in series.items()]
        add_legend(figure, handles, labels, loc="outside lower center", ncols=2)


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {
        str(of_series[0].get("series")): of_series
        for of_series in grouped(rows, ["series"]).values()
    }


def _plot_series(
    axes: Any, rows: Sequence[Row], fit: Mapping[str, Any], end: float, style: dict[str, Any]
) -> Any:
    points = [{**row, "nelbo_se": row.get("standard_error")} for row in rows]
    frontier = [row for row in points if row.get("on_frontier")]
    plot_curve(axes, points, "flops", "nelbo", linestyle="", alpha=0.2, **style)
    plot_curve(axes, frontier, "flops", "nelbo", linestyle="", zorder=3, **style)
    if fit:
        start, last = column(rows, "flops").min(), column(rows, "flops").max()
        for low, high, line in ((start, last, "-"), (last, end, "--")):
            x = np.geomspace(low, max(low, high), 50)
            y = np.exp(_number(fit, "log_coefficient") + _number(fit, "exponent") * np.log(x))
            axes.plot(x, y, line, color=style["color"], linewidth=1.5)
        band = fit.get("band") or ()
        sides = (column(band, name) for name in ("flops", "low", "high"))
        axes.fill_between(*sides, color=style["color"], alpha=0.15, linewidth=0)
    return line_handle(linestyle="-" if fit else "", **style)


def _plot_crossing(axes: Any, crossing: Mapping[str, Any], height: float) -> None:
    flops = _number(crossing, "flops")
    axes.axvline(flops, color="grey", linewidth=1.0, linestyle=":")
    text = (
        f"{crossing.get('steep')} overtakes\n{crossing.get('flat')} at {flops:.1e} FLOPs".replace(
            "e+", "e"
        )
    )
    axes.annotate(
        text,
        (flops, height),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize="small",
        color="dimgrey",
        parse_math=False,
    )


def _describe(name: str, fit: Mapping[str, Any]) -> str:
    if not fit:
        return f"{name}: no fit"
    ends = fit.get("exponent_interval")
    text = f"{name}: exponent {_number(fit, 'exponent'):.4f}"
    return f"{text} ({ends[0]:.4f} to {ends[1]:.4f})" if ends else text


def _fields(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _number(fields: Mapping[str, Any], name: str) -> float:
    return float(column([fields], name)[0])
