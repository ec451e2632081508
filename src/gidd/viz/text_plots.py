"""Figures with a point or a bar per text: likelihoods, samples, grades."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from gidd.common.optional import optional_package
from gidd.viz.figure import (
    COLOURS,
    ENTROPY,
    GEN_PPL,
    MARKERS,
    ResultRows,
    Row,
    Values,
    add_legend,
    column,
    drawing,
    finish,
    plain_ticks,
    plot_curve,
    result_handles,
    scale_perplexity,
    ticks_at,
)

_SCATTER: dict[str, Any] = {"linestyle": "", "alpha": 0.45, "markeredgewidth": 0}
_BINS = 30
_TIMES = {"before": 0.4, "after": 1.0}
"""Before and after correction, with the opacity of the bars."""


def plot_samples(results: Sequence[ResultRows], out: Path) -> None:
    """Plot generative perplexity and entropy of single samples, and their distributions."""
    tables = [
        ResultRows(r.label, [{**row, "gen_ppl": _exp(row.get("gen_nll"))} for row in r.rows])
        for r in results
    ]
    panels = (("gen_ppl", GEN_PPL), ("entropy", ENTROPY))
    ppl = np.concatenate([column(table.rows, "gen_ppl") for table in tables])
    with drawing(out, (12.0, 5.0)) as figure:
        left, *others = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
        for table, colour, marker in zip(tables, COLOURS, MARKERS, strict=False):
            plot_curve(
                left, table.rows, "entropy", "gen_ppl", color=colour, marker=marker, **_SCATTER
            )
        scale_perplexity(left.yaxis, ppl)
        finish(left, "Samples", ENTROPY, GEN_PPL)
        for axes, (name, label) in zip(others, panels, strict=True):
            _histogram(axes, [column(table.rows, name) for table in tables], log=name == "gen_ppl")
            finish(axes, "Distribution (dashed: median)", label, "samples")
            plain_ticks(axes.xaxis)
        add_legend(figure, *result_handles(results), loc="outside lower center", ncols=4)


def plot_ppl(results: Sequence[ResultRows], out: Path) -> None:
    """Plot the NELBO per token of documents against their length, and its distribution."""
    tables = [ResultRows(r.label, [_per_token(row) for row in r.rows]) for r in results]
    with drawing(out, (12.0, 5.0)) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
        for table, colour, marker in zip(tables, COLOURS, MARKERS, strict=False):
            plot_curve(left, table.rows, "tokens", "nelbo", color=colour, marker=marker, **_SCATTER)
        ticks_at(left.xaxis, np.concatenate([column(table.rows, "tokens") for table in tables]))
        finish(left, "Documents", "tokens of the document", "NELBO, nats per token")
        _histogram(right, [column(table.rows, "nelbo") for table in tables])
        finish(right, "Distribution (dashed: median)", "NELBO, nats per token", "documents")
        add_legend(figure, *result_handles(results), loc="outside lower center", ncols=4)


def _per_token(row: Row) -> Row:
    """Return a row with the NELBO of a document, in nats, and its error divided by its tokens."""
    nelbo, error, tokens = (column([row], n)[0] for n in ("nelbo", "standard_error", "tokens"))
    per = tokens if tokens > 0 else np.nan
    return {"tokens": float(tokens), "nelbo": float(nelbo / per), "nelbo_se": float(error / per)}


def _histogram(axes: Any, tables: Sequence[Values], *, log: bool = False) -> None:
    """Draw histograms with common bins, and their medians as lines."""
    finite = [values[np.isfinite(values) & ((values > 0) | (not log))] for values in tables]
    together = np.concatenate(finite)
    if not len(together):
        return
    low, high = float(together.min()), float(together.max())
    if log and high > 4 * low:
        axes.set_xscale("log")
        bins = np.geomspace(low, high, _BINS + 1)
    else:
        bins = np.linspace(low, high if high > low else low + max(abs(low), 1.0), _BINS + 1)
    for values, colour in zip(finite, COLOURS, strict=False):
        if len(values):
            axes.hist(values, bins, histtype="stepfilled", color=colour, alpha=0.25)
            axes.hist(values, bins, histtype="step", color=colour, linewidth=1.4)
            axes.axvline(float(np.median(values)), color=colour, linestyle="--", linewidth=1.2)


def plot_judge(results: Sequence[ResultRows], out: Path) -> None:
    """Plot mean grades before and after correction, with standard errors.

    Stars as in Tab. 4 of the paper: a mean difference of more than 2 (*) or 5 (**) standard errors,
    of the differences of single samples.
    """
    aspects = list(dict.fromkeys(a for r in results for row in r.rows for a in row["before"]))
    width = 0.8 / (len(_TIMES) * len(results))
    with drawing(out, (12.0, 5.0)) as figure:
        axes = figure.subplots()
        for number, result in enumerate(results):
            for i, aspect in enumerate(aspects):
                left = i - 0.4 + (len(_TIMES) * number + 0.5) * width
                _plot_grades(axes, result.rows, aspect, left, width, COLOURS[number])
        axes.set_xticks(range(len(aspects)), [aspect.replace("_", " ") for aspect in aspects])
        for tick in axes.get_xticklabels():
            tick.set_parse_math(False)
        finish(axes, "Grades (difference in standard errors: * > 2, ** > 5)", "", "mean grade")
        axes.grid(axis="x", visible=False)
        handles, names = list[Any](), list[str]()
        for result, colour in zip(results, COLOURS, strict=False):
            for time, alpha in _TIMES.items():
                patch = optional_package("matplotlib.patches", "viz").Patch
                handles.append(patch(color=colour, alpha=alpha))
                names.append(f"{result.label}, {time}")
        add_legend(figure, handles, names, loc="outside lower center", ncols=4)


def _plot_grades(
    axes: Any, rows: Sequence[Row], aspect: str, left: float, width: float, colour: str
) -> None:
    grades = {time: column([_of(row, time) for row in rows], aspect) for time in _TIMES}
    top = np.nan
    for k, (time, alpha) in enumerate(_TIMES.items()):
        mean, error = _mean(grades[time])
        if np.isfinite(mean):
            bars = {"ecolor": "black", "capsize": 2.5}
            place = left + k * width
            axes.bar(place, mean, width, yerr=error, color=colour, alpha=alpha, error_kw=bars)
            top = mean + error
    change, error = _mean(grades["after"] - grades["before"])
    if error > 0 and abs(change) > 2 * error:
        stars = "**" if abs(change) > 5 * error else "*"
        axes.text(left + width, top, stars, ha="center", va="bottom")


def _of(row: Row, time: str) -> Row:
    found = row.get(time)
    return cast(Row, found) if isinstance(found, dict) else {}


def _mean(values: Values) -> tuple[float, float]:
    """Return mean and standard error of the finite values; the error is 0 of a single one."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.nan, 0.0
    error = float(finite.std(ddof=1)) / len(finite) ** 0.5 if len(finite) > 1 else 0.0
    return float(finite.mean()), error


def _exp(value: object) -> float | None:
    return float(np.exp(value)) if isinstance(value, int | float) and value < 600 else None
