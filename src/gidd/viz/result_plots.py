"""The figure of every kind of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gidd.common.files import explain_damage
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.viz.correction_plots import plot_correction, plot_self_correction
from gidd.viz.figure import ResultRows, require_few
from gidd.viz.frontier_plot import plot_frontier
from gidd.viz.scaling_plot import plot_scaling
from gidd.viz.text_plots import plot_judge, plot_ppl, plot_samples

RESULT_PLOTS: dict[str, Callable[[Sequence[ResultRows], Path], None]] = {
    "correction": plot_correction,
    "frontier": plot_frontier,
    "judge": plot_judge,
    "ppl": plot_ppl,
    "samples": plot_samples,
    "scaling": plot_scaling,
    "self_correction": plot_self_correction,
}
"""Kind of a result -> function that draws results of that kind."""


def plot_results(kind: str, results: Sequence[ResultRows], out: Path) -> None:
    """Plot the tables of results of one kind to a PNG file."""
    if kind not in RESULT_PLOTS:
        raise ConfigError(
            f"results of kind {shorten(kind)} have no figure; those of "
            f"{', '.join(RESULT_PLOTS)} have."
        )
    require_few(len(results), "results")
    if empty := [result.label for result in results if not result.rows]:
        raise DataError(f"{shorten(empty[0])} has no rows to plot. Evaluate again.")
    with explain_damage("a result", "Evaluate again.", DataError):
        RESULT_PLOTS[kind](results, out)
