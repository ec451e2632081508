"""How the evaluations parse their options, and print and save their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich.table import Table

from gidd.cli.model_options import CheckedCommand, parse_checked
from gidd.cli.output import CliConsole, plain, require_writable
from gidd.common.messages import print_message

if TYPE_CHECKING:
    from gidd.evaluation.results import EvaluationResult

Column = Callable[[Mapping[str, Any]], str]
"""The text of a cell, given its row."""


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where a result goes."""

    out: Path | None = None
    """Save the result with its manifest as JSON."""
    json: bool = False
    """Print the result with its manifest as JSON instead of a table."""


class _Evaluation(CheckedCommand, Protocol):
    @property
    def result(self) -> ResultOptions: ...


_T = TypeVar("_T", bound=_Evaluation)


def parse_evaluation(
    kind: type[_T],
    prog: str,
    doc: str | None,
    arguments: Sequence[str],
    *,
    lists: Collection[str] = (),
    default: _T | None = None,
) -> _T:
    """Parse and check options, and that the result can be written; split `lists` at commas."""
    options = parse_checked(kind, prog, doc, split_commas(arguments, lists), default)
    if options.result.out is not None:
        require_writable(options.result.out, "--out")
    return options


def split_commas(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return the arguments with the values of these flags split at commas."""
    words: list[str] = []
    is_list = False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag.replace("_", "-") in flags:
            words, is_list, argument = [*words, flag], True, value
        else:
            is_list = is_list and not argument.startswith("--")
        words += filter(None, argument.split(",")) if is_list else [argument]
    return words


def report(
    result: EvaluationResult,
    options: ResultOptions,
    show: Callable[[EvaluationResult], None] | None = None,
) -> None:
    """Save the result; print it as JSON, by `show`, or as a list of measurements."""
    if options.out is not None:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_dict(), allow_nan=False), flush=True)
    elif show is not None:
        show(result)
    else:
        console, width = CliConsole(highlight=False), max(map(len, result.measurements), default=0)
        for name, value in result.measurements.items():
            console.print(plain(f"{name:{width}}  {value}"))
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


def report_rows(
    result: EvaluationResult, options: ResultOptions, columns: Mapping[str, Column]
) -> None:
    """Print the rows of a result as a table, or all of it as JSON, and save it."""

    def show(shown: EvaluationResult) -> None:
        console = CliConsole(highlight=False)
        # a narrow terminal breaks lines; numbers must not be cut
        console.width = max(console.width, 120)
        table = Table(box=None, pad_edge=False)
        for name in columns:
            table.add_column(name, no_wrap=True)
        for row in shown.rows:
            table.add_row(*(plain(cell(row)) for cell in columns.values()))
        console.print(table)

    report(result, options, show)
