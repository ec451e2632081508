"""One plot for the results of every kind of evaluation: columns x and y of rows, by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gidd.common.files import explain_damage
from gidd.common.terminal import printable
from gidd.errors import ConfigError, DataError
from gidd.viz.figure import (
    Values,
    add_legend,
    choose_scale,
    curve_style,
    drawing,
    finish,
    line_handle,
    require_few,
)

Row = Mapping[str, Any]


class ResultTable(NamedTuple):
    """A result of an evaluation."""

    label: str
    rows: Sequence[Row]
    measurements: Mapping[str, tuple[float, float | None]] = {}
    """Values and their standard errors."""

    manifest: Mapping[str, Any] = {}


class Panel(NamedTuple):
    """Axes with column y against column x; error bars are in the columns x_se and y_se."""

    x: str
    y: str
    group: tuple[str, ...] = ()
    """A curve for every combination of the values of these columns."""

    along: tuple[str, ...] | None = None
    """Points are connected along the first of these columns that varies; by default along x."""


_LABELS = {
    "calls": "forward passes",
    "entropy": "unigram entropy, nats",
    "flops": "training FLOPs",
    "gen_ppl": "generative perplexity",
    "min_p": "min-p",
    "nelbo": "NELBO, nats per token",
    "num_changed": "changed tokens",
    "self_accuracy": "self-accuracy",
    "steps": "denoising steps",
    "tokens": "tokens of the document",
    "wer": "word error rate after correction",
    "wer_before": "word error rate before",
}
_PANELS: dict[str, tuple[Panel, ...]] = {
    "correction": (Panel("wer_before", "wer", ("noise", "method")),),
    "frontier": (
        Panel(
            "entropy",
            "gen_ppl",
            ("steps", "temperature", "min_p", "corrector", "corrector_calls"),
            along=("temperature", "steps", "min_p"),
        ),
    ),
    "ppl": (Panel("tokens", "nelbo", along=()),),
    "samples": (Panel("entropy", "gen_ppl", along=()),),
    "scaling": (Panel("flops", "nelbo", ("series",), along=()),),
    "self_correction": (
        Panel("temperature", "num_changed", ("calls",)),
        Panel("num_changed", "gen_ppl", ("calls",), ("temperature",)),
        Panel("num_changed", "entropy", ("calls",), ("temperature",)),
        Panel("gen_ppl", "self_accuracy", ("calls",), ("temperature",)),
    ),
}
"""Kind of a result -> its panels; results of other kinds show their measurements."""


def plot_results(
    kind: str, results: Sequence[ResultTable], out: Path, panel: Panel | None = None
) -> None:
    """Plot results of one kind to a file; `panel` chooses columns of their rows."""
    require_few(len(results), "results")
    with explain_damage("a result", "Evaluate again.", DataError):
        if panel is None:
            results = [result._replace(rows=_table(kind, result)) for result in results]
        rows = [row for result in results for row in result.rows]
        if not rows:
            raise DataError("the results have nothing to plot. Evaluate again.")
        columns = sorted({name for row in rows for name in row})
        for name in () if panel is None else (panel.x, panel.y, *panel.group):
            if name not in columns:
                raise ConfigError(
                    f"--x, --y and --group must be columns of the rows, got {printable(name)}. "
                    f"They have {', '.join(map(printable, columns))}."
                )
        default = _PANELS.get(kind, (Panel("measurement", "value", along=()),))
        panels = [_varying(each, rows) for each in ((panel,) if panel else default)]
        width = min(len(panels), 2)
        height = -(-len(panels) // width)
        with drawing(out, (5.5 * width + 1.5, 4.0 * height + 1.0)) as figure:
            grid = figure.subplots(height, width, squeeze=False).flat
            legends = [_draw_panel(*pair, results) for pair in zip(grid, panels, strict=True)]
            legend = legends[0]
            place = {"loc": "outside lower center", "ncols": 2 * width}
            add_legend(figure, [*legend.values()], [*legend], **place)


def _table(kind: str, result: ResultTable) -> list[Row]:
    """Return the rows with the columns of the panels of a kind."""
    if kind not in _PANELS:
        found = {n: v for n, v in result.measurements.items() if not n.endswith("_change")}
        tested = {name: value for name, value in found.items() if value[1] is not None}
        shown = (tested or found).items()  # counts and p-values have another scale
        return [{"measurement": name, "value": v, "value_se": error} for name, (v, error) in shown]
    compute = _COLUMNS.get(kind, lambda _: {})
    return [{**row, **compute(row)} for row in result.rows]


def _per_token(row: Row) -> dict[str, Any]:
    """Return the NELBO of a document, in nats, and its error divided by its tokens."""
    nelbo, error, tokens = (_number(row.get(n)) for n in ("nelbo", "standard_error", "tokens"))
    per = tokens if tokens > 0 else np.nan
    return {"nelbo": nelbo / per, "nelbo_se": error / per}


def _varying(panel: Panel, rows: Sequence[Row]) -> Panel:
    """Return a panel with the columns that vary."""
    varying = {n for row in rows for n in row if len({str(each.get(n)) for each in rows}) > 1}
    along = (panel.x,) if panel.along is None else panel.along
    along = tuple(name for name in along if name in varying)[:1]
    group = tuple(name for name in panel.group if name in varying and name not in along)
    return panel._replace(group=group, along=along)


def _draw_panel(axes: Any, panel: Panel, results: Sequence[ResultTable]) -> dict[str, Any]:
    """Draw the curves of all results; return the handles of the legend by label."""
    rows = [row for result in results for row in result.rows]
    names = list(dict.fromkeys(str(row.get(panel.x)) for row in rows))
    is_text = any(isinstance(row.get(panel.x), str) for row in rows)
    groups = list(dict.fromkeys(_group(row, panel) for row in rows))
    legend: dict[str, Any] = {}
    for number, (place, group) in product(range(len(results)), enumerate(groups)):
        result = results[number]
        points = [row for row in result.rows if _group(row, panel) == group]
        if not points:
            continue
        style = curve_style(place, number if len(results) > 1 else None)
        if is_text:  # points of several curves stand beside each other
            curve = (number * len(groups) + place + 0.5) / (len(results) * len(groups))
            shift = 0.6 * (curve - 0.5)
            points = [{**p, panel.x: names.index(str(p.get(panel.x))) + shift} for p in points]
        style["linestyle"] = style["linestyle"] if panel.along else ""
        _draw_curve(axes, points, panel, style)
        _draw_fit(axes, points, result.manifest, style)
        label = ", ".join(([result.label] if len(results) > 1 else []) + ([group] if group else []))
        legend[label or result.label] = line_handle(**style)
    choose_scale(axes.yaxis, _column(rows, panel.y))
    if is_text:
        axes.set_xticks(range(len(names)), [printable(name) for name in names])
        for tick in axes.get_xticklabels():
            tick.set(parse_math=False, **{"rotation": 30, "ha": "right"} if len(names) > 5 else {})
    else:
        choose_scale(axes.xaxis, _column(rows, panel.x))
    finish(axes, *(_LABELS.get(name, name) for name in (panel.x, panel.y)))
    return legend


def _group(row: Row, panel: Panel) -> str:
    """Return the values of the columns that group rows, such as "steps 32, min-p 0.1"."""
    shown = {_LABELS.get(name, name): row.get(name) for name in panel.group}
    return ", ".join(v if isinstance(v, str) else f"{n} {v}" for n, v in shown.items())


def _draw_curve(axes: Any, rows: Sequence[Row], panel: Panel, style: dict[str, Any]) -> None:
    """Draw points with error bars; those that are not on a frontier are hollow."""
    for name in panel.along or ():
        rows = [rows[i] for i in np.argsort(_column(rows, name), kind="stable")]
    x, y = _column(rows, panel.x), _column(rows, panel.y)
    keep = np.isfinite(x) & np.isfinite(y)
    if not keep.any():
        return
    errors = {
        f"{axis}err": np.nan_to_num(np.abs(found[keep]))
        for axis, name in (("x", panel.x), ("y", panel.y))
        if np.isfinite(found := _column(rows, f"{name}_se")).any()
    }
    bars = {"capsize": 2.5, "elinewidth": 1.0, "markersize": 6}
    is_best = np.array([row.get("on_frontier") is not False for row in rows])[keep]
    if not is_best.all():
        bars |= {"markerfacecolor": "white"}
        filled = style | {"linestyle": "", "zorder": 4}
        axes.plot(x[keep][is_best], y[keep][is_best], **filled)
    axes.errorbar(x[keep], y[keep], **errors, **bars, **style)


def _draw_fit(
    axes: Any, rows: Sequence[Row], manifest: Mapping[str, Any], style: dict[str, Any]
) -> None:
    """Draw the power law of a series of training runs."""
    fit = (manifest.get("fits") or {}).get(str(rows[0].get("series")))
    if fit and np.isfinite(flops := _column(rows, "flops")).any():
        x = np.geomspace(np.nanmin(flops), np.nanmax(flops), 50)
        y = np.exp(fit["log_coefficient"] + fit["exponent"] * np.log(x))
        axes.plot(x, y, color=style["color"], linewidth=1.5)
        axes.set(xscale="log", yscale="log")


def _column(rows: Iterable[Row], name: str) -> Values:
    """Return the numbers of a column; NaN where a row has none."""
    return np.array([_number(row.get(name)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else np.nan


_COLUMNS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "ppl": _per_token,
    "samples": lambda row: {"gen_ppl": np.exp(min(_number(row.get("gen_nll")), 700.0))},
    "scaling": lambda row: {"nelbo_se": row.get("nelbo_se", row.get("standard_error"))},
}
"""Kind of a result -> columns that are computed from a row."""
