"""How the evaluations print and save their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from gidd.cli.output import CliConsole, plain, print_json, write_problems
from gidd.common.messages import print_message

if TYPE_CHECKING:
    from gidd.evaluation.results import EvaluationResult

Column = Callable[[Mapping[str, Any]], str]  # the text of a cell, given its row


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where a result goes."""

    out: Path | None = None
    """Save the result with its manifest as JSON."""
    json: bool = False
    """Print the result with its manifest as JSON instead of a table."""

    def problems(self) -> Iterable[str]:
        """Yield a message if the file could not be written."""
        return write_problems("out", self.out)


def report(
    result: EvaluationResult, options: ResultOptions, columns: Mapping[str, Column] | None = None
) -> None:
    """Save the result; print it as JSON, as a table of its rows, or as a list of measurements."""
    if options.out is not None:
        result.save(options.out)
    console = CliConsole(highlight=False)
    if options.json:
        print_json(**result.to_dict())
    elif columns is None:
        width = max(map(len, result.measurements), default=0)
        for name, value in result.measurements.items():
            console.print(plain(f"{name:{width}}  {value}"))
    else:
        # a narrow terminal breaks lines; numbers must not be cut
        console.width = max(console.width, 120)
        table = Table(box=None, pad_edge=False)
        for name in columns:
            table.add_column(name, no_wrap=True)
        for row in result.rows:
            table.add_row(*(plain(cell(row)) for cell in columns.values()))
        console.print(table)
    if options.out is not None:
        print_message(f"wrote {options.out}.")


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
