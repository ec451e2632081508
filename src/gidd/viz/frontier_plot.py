"""Figure of the generative frontier: quality against diversity, over sampling settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    scale_perplexity,
    ticks_at,
    varying,
)

_SETTINGS = ("steps", "temperature", "min_p", "corrector")
_PANELS = {"steps": "denoising steps", "min_p": "min-p"}


class _Curve(NamedTuple):
    name: str
    rows: Sequence[Row]
    style: dict[str, Any]


def plot_frontier(results: Sequence[ResultRows], out: Path) -> None:
    """Plot quality against diversity, and both against steps and min-p where these vary.

    Curves run over temperatures (or steps, or min-p, if there is one temperature). Filled points
    are pareto-optimal, as the rows say: no other setting is better in quality and diversity.
    """
    results = [result._replace(rows=list(map(_readable, result.rows))) for result in results]
    rows = [row for result in results for row in result.rows]
    vary = varying(rows, _SETTINGS)
    along = next((name for name in ("temperature", *_PANELS) if name in vary), "temperature")
    panels = [name for name in _PANELS if name in vary]
    heights = [5.0, *(3.4 for _ in panels)]
    with drawing(out, (12.0, sum(heights))) as figure:
        parts = np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=heights))
        curves = _curves(results, [name for name in vary if name != along])
        _plot_tradeoff(parts[0].subplots(), results, curves, along)
        _add_legend(parts[0], curves, 24)
        for part, name in zip(parts[1:], panels, strict=True):
            curves = _curves(results, [other for other in vary if other != name])
            left, right = part.subplots(1, 2)
            for axes, y, title, label in (
                (left, "gen_ppl", "Quality", GEN_PPL),
                (right, "entropy", "Diversity", ENTROPY),
            ):
                for curve in curves:
                    plot_curve(axes, curve.rows, name, y, **curve.style)
                ticks_at(axes.xaxis, column(rows, name))
                finish(axes, f"{title} against {_PANELS[name]}", _PANELS[name], label)
            scale_perplexity(left.yaxis, column(rows, "gen_ppl"))
            _add_legend(part, curves, 15)


def _readable(row: Row) -> Row:
    """Return a row whose corrector is one text with its calls, and whose min-p is 0 if off."""
    name, calls = row.get("corrector"), row.get("corrector_calls")
    corrector = f"{name} × {calls}" if name and calls else "no corrector"
    return {**row, "corrector": corrector, "min_p": row.get("min_p") or 0.0}


def _plot_tradeoff(
    axes: Any, results: Sequence[ResultRows], curves: Sequence[_Curve], along: str
) -> None:
    for _, rows, style in curves:
        path = [rows[i] for i in np.argsort(column(rows, along), kind="stable")]
        hollow: dict[str, Any] = {"markerfacecolor": "white", **style}
        plot_curve(axes, path, "entropy", "gen_ppl", sort=False, **hollow)
        best = [row for row in rows if row.get("on_frontier")]
        filled: dict[str, Any] = {**style, "linestyle": "", "zorder": 4}
        plot_curve(axes, best, "entropy", "gen_ppl", **filled)
    ppl = np.concatenate([column(rows, "gen_ppl") for _, rows, _ in results])
    scale_perplexity(axes.yaxis, ppl)
    title = f"Quality against diversity, curves over {along.replace('_', ' ')}"
    finish(axes, f"{title} (filled: pareto-optimal)", ENTROPY, GEN_PPL)


def _curves(results: Sequence[ResultRows], names: Sequence[str]) -> list[_Curve]:
    """Return one curve per result and values of some settings, with a style of its own.

    The colour is that of the result or, if there is one result, of the settings.
    """
    curves: list[_Curve] = []
    for number, result in enumerate(results):
        for i, (name, rows) in enumerate(grouped(result.rows, names).items()):
            style = {
                "color": COLOURS[(number if len(results) > 1 else i) % len(COLOURS)],
                "marker": MARKERS[i % len(MARKERS)],
                "linestyle": LINES[i // len(MARKERS) % len(LINES)],
            }
            prefix = [result.label] if len(results) > 1 or not name else []
            curves.append(_Curve(", ".join([*prefix, *([name] if name else [])]), rows, style))
    return curves


def _add_legend(part: Any, curves: Sequence[_Curve], most: int) -> None:
    handles = [line_handle(**curve.style) for curve in curves]
    add_legend(part, handles, [curve.name for curve in curves], most=most)
