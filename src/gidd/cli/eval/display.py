"""Tables and progress of evaluations that compare settings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gidd.cli.console import CliConsole, plain
from gidd.cli.eval.report import ResultOptions, report

if TYPE_CHECKING:
    from gidd.evaluation.results import EvaluationResult

_WIDTH = 120
"""Characters of a line that a table may have."""

Column = Callable[[Mapping[str, Any]], str]
"""The text of a cell, given its row."""


def with_error(name: str, *, percent: bool = False, digits: int = 2) -> Column:
    """Return a column of a number and its standard error; "-" if it was not measured."""
    scale, unit = (100, "%") if percent else (1, "")

    def cell(row: Mapping[str, Any]) -> str:
        value, error = row.get(name), row.get(f"{name}_se")
        if value is None or value != value:
            return "-"
        shown = f"{scale * value:.{digits}f}{unit}"
        return f"{shown} ± {scale * error:.{digits}f}" if error else shown

    return cell


def report_rows(
    result: EvaluationResult, options: ResultOptions, columns: Mapping[str, Column]
) -> None:
    """Print the rows of a result as a table, or all of it as JSON, and save it."""

    def show(shown: EvaluationResult) -> None:
        console = CliConsole(highlight=False)
        # a narrow terminal breaks lines; numbers must not be cut
        console.width = max(console.width, _WIDTH)
        console.print(_table(shown.rows, columns))

    report(result, options, show)


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(plain(cell(row)) for cell in columns.values()))
    return table


@contextmanager
def show_actions() -> Generator[Callable[[str, int, int], None] | None]:
    """Yield a callback that draws (action, done, total); None if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        tasks = {"": progress.add_task("", visible=False)}

        def draw(action: str, done: int, total: int) -> None:
            if action not in tasks:  # the time left is that of one action
                progress.remove_task(tasks.popitem()[1])
                tasks[action] = progress.add_task(action)
            progress.update(tasks[action], completed=done, total=total)

        yield draw


@contextmanager
def show_counts(action: str) -> Generator[Callable[[int, int], None] | None]:
    """Yield a callback that draws (done, total) with the time left; None without a terminal."""
    with show_actions() as draw:
        yield None if draw is None else partial(draw, action)
