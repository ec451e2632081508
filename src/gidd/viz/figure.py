"""What all figures share: colours, style, saving, curves with error bars, legends."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gidd.common import files
from gidd.common.optional import optional_package
from gidd.common.terminal import printable
from gidd.errors import ConfigError

Values = NDArray[np.float64]
Row = Mapping[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The Okabe-Ito palette: distinguishable with every kind of colour vision."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
GEN_PPL, ENTROPY = "generative perplexity", "unigram entropy, nats"

DPI = 150
_LEGEND_CHARACTERS = 70
_NAMES = {"steps": "{} steps", "calls": "{} calls", "min_p": "min-p {}", "temperature": "temp. {}"}
"""How the value of a setting is written in a legend; alone by default."""

_WIDE = 8.0
"""Positive values that differ by this factor have a log scale."""

_ERROR_BARS: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1.0, "markersize": 6}
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


class ResultRows(NamedTuple):
    """The table of one result, to be drawn in one colour."""

    label: str
    rows: Sequence[Row]
    details: Mapping[str, Any] = {}
    """The manifest of the result."""


@contextmanager
def drawing(out: Path, inches: tuple[float, float], **style: Any) -> Generator[Any]:
    """Yield a matplotlib figure, and save it as a PNG file when the block ends."""
    if out.is_dir():
        raise ConfigError(
            f"out must be a file, but {out} is a folder. Use e.g. {out / 'curves.png'}."
        )
    matplotlib = optional_package("matplotlib", "viz")
    figures = optional_package("matplotlib.figure", "viz")
    agg = optional_package("matplotlib.backends.backend_agg", "viz")
    with matplotlib.rc_context(_STYLE | style):
        figure = figures.Figure(figsize=inches, layout="constrained")
        agg.FigureCanvasAgg(figure)  # needs no display
        yield figure
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as file:
            figure.savefig(file, format="png", dpi=DPI)


def require_few(num: int, what: str) -> None:
    """Refuse a plot with more curves than there are colours."""
    if not 1 <= num <= len(COLOURS):
        raise ConfigError(
            f"a plot must have 1 to {len(COLOURS)} {what}, got {num}. "
            "Plot the others to another file."
        )


def column(rows: Iterable[Row], name: str) -> Values:
    """Return the numbers of a column; NaN where a row has none."""
    return np.array([_number(row.get(name)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else np.nan


def varying(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the columns that have more than one value."""
    return [name for name in names if len({_key(row.get(name)) for row in rows}) > 1]


def grouped(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """Return rows with equal values in some columns, by a text such as "32 steps, min-p 0.1"."""
    groups: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_key(row.get(name)) for name in names), []).append(row)
    return {
        ", ".join(
            _NAMES.get(name, "{}").format(_show(value))
            for name, value in zip(names, key, strict=True)
        ): of_group
        for key, of_group in groups.items()
    }


def _key(value: object) -> Hashable:
    return value if isinstance(value, int | float | str | None) else str(value)


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else printable(str(value))


def plot_curve(
    axes: Any, rows: Sequence[Row], x: str, y: str, *, sort: bool = True, **style: Any
) -> None:
    """Plot column y against column x with the error bars in the columns x_se and y_se."""
    across, up = column(rows, x), column(rows, y)
    keep = np.isfinite(across) & np.isfinite(up)
    order = np.flatnonzero(keep)
    if sort:
        order = order[np.argsort(across[order], kind="stable")]
    if not len(order):
        return
    errors = {
        f"{axis}err": np.nan_to_num(found[order])
        for axis, name in (("x", x), ("y", y))
        if np.isfinite(found := np.abs(column(rows, f"{name}_se"))).any()
    }
    axes.errorbar(across[order], up[order], **errors, **_ERROR_BARS, **style)


def plain_text(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """Write text that may have dollar signs, at a point in data coordinates."""
    axes.text(x, y, text, parse_math=False, **style)


def finish(axes: Any, title: str, x: str, y: str) -> None:
    """Set title and labels; say so if nothing was drawn."""
    axes.set_title(title)
    if not axes.has_data():
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color="grey")
        axes.set(xticks=[], yticks=[])
        return
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.margins(x=0.05)
    if axes.get_xscale() == "linear" and y:
        axes.locator_params(axis="x", nbins=6)


def choose_scale(axes: Any, axis: str, values: Values) -> None:
    """Use a log scale if positive values differ widely; zero then has a place of its own."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive) or positive.max() < _WIDE * positive.min():
        return
    if (values[np.isfinite(values)] <= 0).any():
        getattr(axes, f"set_{axis}scale")("symlog", linthresh=positive.min(), linscale=0.5)
    else:
        getattr(axes, f"set_{axis}scale")("log")


def scale_perplexity(axis: Any, values: Values) -> None:
    """Use a log scale with ticks such as 20, 50, 100 for perplexities that differ widely."""
    choose_scale(axis.axes, axis.axis_name, values)
    plain_ticks(axis)


def plain_ticks(axis: Any) -> None:
    """Write the ticks of a log axis as numbers: 20, 50, 100; its limits must be final."""
    if axis.get_scale() != "log":
        return
    ticker = optional_package("matplotlib.ticker", "viz")
    low, high = axis.get_view_interval()
    is_wide = high > 4 * low
    few = ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if is_wide else few)
    axis.set_major_formatter("{x:g}")
    if not is_wide:
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_minor_formatter(ticker.NullFormatter())


def ticks_at(axis: Any, values: Values) -> None:
    """Place ticks at the values themselves, if they are few, on a log scale if they are wide."""
    choose_scale(axis.axes, axis.axis_name, values)
    unique = np.unique(values[np.isfinite(values)])
    if 1 < len(unique) <= 8 and axis.get_scale() == "log":
        ticker = optional_package("matplotlib.ticker", "viz")
        axis.set_major_locator(ticker.FixedLocator(unique))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())


def add_legend(
    figure: Any, handles: Sequence[Any], labels: Sequence[str], *, most: int = 40, **place: Any
) -> None:
    """Add a legend with at most `most` entries; by default outside of the axes, on the right."""
    shown, lines = [_shorten(label) for label in labels[:most]], list(handles[:most])
    if len(labels) > most:
        shown.append(f"... and {len(labels) - most} more")
        lines.append(line_handle(linestyle=""))
    style = {"frameon": False, "fontsize": "small", "loc": "outside right upper"} | place
    for text in figure.legend(lines, shown, **style).get_texts():
        text.set_parse_math(False)


def line_handle(**style: Any) -> Any:
    """Return a line for a legend."""
    return optional_package("matplotlib.lines", "viz").Line2D([], [], **style)


def _shorten(label: str) -> str:
    """Return a label without control characters; one that begins with _ would not be shown."""
    text = printable(label)
    if len(text) > _LEGEND_CHARACTERS:
        text = text[: _LEGEND_CHARACTERS - 1] + "…"
    return f" {text}" if text.startswith("_") else text


def result_handles(results: Sequence[ResultRows]) -> tuple[list[Any], list[str]]:
    """Return the handles and labels of a legend with a colour and a marker per result."""
    styles = zip(results, COLOURS, MARKERS, strict=False)
    handles = [line_handle(color=colour, marker=marker) for _, colour, marker in styles]
    return handles, [result.label for result in results]
