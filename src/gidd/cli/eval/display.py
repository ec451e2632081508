"""Tables and progress of evaluations that compare settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gidd.cli.console import CliConsole, plain
from gidd.cli.eval.report import ResultOptions
from gidd.cli.messages import print_message

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
    if options.out is not None:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_dict(), allow_nan=False), flush=True)
    else:
        console = CliConsole(highlight=False)
        # a narrow terminal breaks lines; numbers must not be cut
        console.width = max(console.width, _WIDTH)
        console.print(_table(result.rows, columns))
    if options.out is not None:
        print_message(f"wrote {options.out}.")


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(plain(cell(row)) for cell in columns.values()))
    return table


@contextmanager
def show_counts(action: str) -> Generator[Callable[[int, int], None] | None]:
    """Yield a callback that draws (done, total) with the time left; None without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn(action),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
