"""Compare two results of `gidd eval`: numbers, significance, and settings that differ.

- Differences are B - A, with standard errors and two-sided p-values.
- Results on the same documents, samples or questions are compared in pairs.
- With several measurements, p-values are adjusted for their number (Holm).

Examples:
  gidd compare ppl-p0.json ppl-p0.1.json
  gidd compare before.json after.json --json
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from gidd.cli.output import CliConsole, plain, print_json
from gidd.cli.parsing import parse

if TYPE_CHECKING:
    from gidd.evaluation.compare import ComparedNumber, Comparison
    from gidd.evaluation.results import Measurement

_SMALLEST_P = 1e-16
_NAME_WIDTH = 13  # characters of "bits_per_byte", which fit beside the numbers in 80 columns
_LONGEST = 120  # characters of a setting that the table shows; --json prints all


def compare_command(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A.json")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B.json")],
    /,
    *,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Compare two results.

    Args:
        first: Result written by `gidd eval ... --out A.json`.
        second: Result of the same evaluation of another model, or with other settings.
        as_json: Print the comparison as JSON instead of tables.
    """
    from gidd.evaluation.compare import compare_results
    from gidd.evaluation.results import EvaluationResult

    comparison = compare_results(EvaluationResult.read(first), EvaluationResult.read(second))
    if as_json:
        print_json(**comparison.to_dict())
    else:
        _show(comparison, first, second)


def main(arguments: Sequence[str]) -> None:
    """Parse and compare."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    parse(compare_command, arguments, prog="gidd compare", description=__doc__, config=flags)


def _show(comparison: Comparison, first: Path, second: Path) -> None:
    console = CliConsole(highlight=False)
    console.print(plain(f"gidd eval {comparison.kind}\nA  {first}\nB  {second}\n"))
    if comparison.numbers:
        console.print(_numbers(comparison))
        console.print(plain(_legend(comparison)))
    for file, names in (("A", comparison.only_first), ("B", comparison.only_second)):
        if names:
            console.print(plain(f"Only in {file}: {', '.join(names)}."))
    if not comparison.settings:
        console.print(plain("\nAll recorded settings are equal."))
        return
    console.print(plain("\nSettings that differ:"))
    table = Table("", "A", "B", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for name, *values in comparison.settings:
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        short = [t if len(t) <= _LONGEST else f"{t[: _LONGEST - 3]}..." for t in texts]
        table.add_row(*map(plain, (name, *short)))
    console.print(table)


def _numbers(comparison: Comparison) -> Table:
    is_adjusted = comparison.num_tests > 1
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("", min_width=_NAME_WIDTH)
    for name in ("A", "B", "B - A", "p", *(["Holm"] * is_adjusted)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("5%", no_wrap=True)
    for row in comparison.numbers:
        change, is_significant = row.difference, row.is_significant
        difference = row.first._replace(value=change.value, standard_error=change.standard_error)
        sign = "+" if change.value > 0 else ""
        cells = [row.name, _measured(row.first), _measured(row.second)]
        cells += [sign + _measured(difference), _p(change.p_value)]
        cells += [_p(row.adjusted_p_value)] * is_adjusted
        cells.append("-" if is_significant is None else "yes" if is_significant else "no")
        table.add_row(*map(plain, cells), style="bold" if is_significant else None)
    return table


def _measured(measurement: Measurement) -> str:
    return str(measurement) if measurement.standard_error else f"{measurement.value:.4g}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    if value < _SMALLEST_P:
        return f"<{_SMALLEST_P:.0e}"
    return f"{value:.2g}" if value >= 1e-3 else f"{value:.0e}"


def _legend(comparison: Comparison) -> str:
    from gidd.evaluation.compare import FEW_ROWS, HAS_SCIPY

    tests = comparison.num_tests
    paired = [row for row in comparison.numbers if row.difference.is_paired]
    adjusted = f"Holm: p adjusted for {tests} tests; 5%: Holm < 5%."
    lines = [f"± standard error; p: two-sided; {adjusted if tests > 1 else '5%: whether p < 5%.'}"]
    if paired:
        rows = paired[0].difference.num_pairs
        which = "All tested numbers are" if len(paired) == tests else _names(paired) + ":"
        lines.append(f"{which} compared in pairs, by the ids of {rows:,} rows (t-test).")
    if len(paired) < tests:
        which = "The others are" if paired else "The results are"
        lines.append(f"{which} compared as independent (Welch's t-test).")
    sizes = [row.num_rows for row in comparison.numbers if row.num_rows > 1]
    if tests and sizes and min(sizes) < FEW_ROWS:
        lines.append(
            f"Warning: {min(sizes)} rows are too few to trust a test: a t-test needs about "
            f"{FEW_ROWS}, unless the values are normally distributed."
        )
    if not HAS_SCIPY:
        lines.append('p-values need scipy: `pip install "gidd[eval]"`.')
    untested = [n for n in comparison.numbers if n.difference.p_value is None]
    if unknown := [n for n in untested if n.difference.standard_error is None]:
        lines.append(
            f"Not tested: {_names(unknown)}. They are exact, or come from a single document, "
            "sample or question."
        )
    return "\n".join(lines)


def _names(numbers: Iterable[ComparedNumber]) -> str:
    return ", ".join(row.name for row in numbers)
