"""What all figures share: colours, style, formats of files, log axes and legends."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gidd.common import files
from gidd.common.optional import optional_package
from gidd.common.terminal import printable
from gidd.errors import ConfigError

Values = NDArray[np.float64]

FORMATS = ("png", "pdf", "svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The Okabe-Ito palette: distinguishable with every kind of colour vision."""

DPI = 150
_LEGEND_CHARACTERS, _LEGEND_ENTRIES = 70, 24
_STYLE: dict[str, Any] = {
    **{f"axes.spines.{side}": False for side in ("right", "top")},
    **{"axes.axisbelow": True, "axes.grid": True, "font.size": 10.0, "grid.alpha": 0.25},
    **{"axes.titlelocation": "left", "axes.titlesize": "medium", "axes.titleweight": "bold"},
}


def require_format(out: Path) -> None:
    """Refuse a file whose suffix is not a format that can be written."""
    if out.is_dir() or out.suffix.lower()[1:] not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigError(f"--out must be a file that ends in {names}, got {printable(str(out))}.")


@contextmanager
def drawing(out: Path, inches: tuple[float, float]) -> Generator[Any]:
    """Yield a matplotlib figure; save it in the format of the file's suffix when the block ends."""
    require_format(out)
    matplotlib = optional_package("matplotlib", "viz")
    figures = optional_package("matplotlib.figure", "viz")
    with matplotlib.rc_context(_STYLE):
        figure = figures.Figure(figsize=inches, layout="constrained")
        yield figure
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as file:
            figure.savefig(file, format=out.suffix.lower()[1:], dpi=DPI)


def require_few(num: int, items: str) -> None:
    """Refuse a plot with more curves than there are colours."""
    if not 1 <= num <= len(COLOURS):
        raise ConfigError(f"a plot must have 1 to {len(COLOURS)} {items}, got {num}.")


def finish(axes: Any, x: str, y: str) -> None:
    """Set the labels; say so if nothing was drawn."""
    if not axes.has_data():
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color="grey")
        axes.set(xticks=[], yticks=[])
        return
    for axis, label in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(label, parse_math=False)
        low, high = axis.get_view_interval()
        if axis.get_scale() != "log" or high > 1e4 * low or high > 1e6:
            continue
        # the ticks of a log axis of at most four decades are numbers: 20, 50, 100
        ticker = optional_package("matplotlib.ticker", "viz")
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        if high < 4 * low:
            axis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(ticker.NullFormatter())


def add_legend(owner: Any, handles: Sequence[Any], labels: Sequence[str], **place: Any) -> None:
    """Add a legend to a figure or axes, without formulas in its labels."""
    # a label that begins with _ would not be shown
    shown = [f" {printable(label)[:_LEGEND_CHARACTERS]}" for label in labels[:_LEGEND_ENTRIES]]
    style = {"frameon": False, "fontsize": "small"} | place
    legend = owner.legend(handles[:_LEGEND_ENTRIES], shown, **style)
    for text in legend.get_texts():
        text.set_parse_math(False)


def line_handle(**style: Any) -> Any:
    """Return a line for a legend."""
    return optional_package("matplotlib.lines", "viz").Line2D([], [], **style)
