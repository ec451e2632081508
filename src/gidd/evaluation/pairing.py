"""Differences of two results that have rows in common: documents, samples or questions.

The same document is hard or easy for both models. Its difference varies less than its values, so
that the standard error over paired rows is much smaller than that of independent results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.significance import Difference, mean_difference

_Row = Mapping[str, Any]
_Term = Callable[[_Row], tuple[float, float] | None]
"""Numerator and denominator of a row; None if the measurement is not defined for it."""

_TOLERANCE = 1e-6
"""Relative difference up to which rows are those that a measurement was computed from."""

_LARGEST = 1e100


class RowRatio(NamedTuple):
    """A measurement as a ratio of sums over rows, or its exponential; a mean has denominators 1."""

    term: _Term
    is_exponential: bool = False

    def influences(self, rows: Sequence[_Row]) -> tuple[float, list[float]]:
        """Return the measurement, and how much each row moves it to first order (delta method).

        The standard deviation of the influences over the square root of their number is the
        standard error. An undefined row has no weight.
        """
        terms = np.array([self.term(row) or (0.0, 0.0) for row in rows], dtype=np.float64)
        total, weight = terms.sum(axis=0)
        if not weight > 0:
            return math.nan, []
        ratio = float(total / weight)
        moved = (terms[:, 0] - ratio * terms[:, 1]) * (len(rows) / weight)
        value = math.exp(min(ratio, 700.0)) if self.is_exponential else ratio
        scale = value if self.is_exponential else 1.0
        return value, (scale * moved).tolist()


def _columns(numerator: str, denominator: str, unit: float = 1.0) -> _Term:
    """Return the ratio of two columns, with the numerator in some unit."""

    def term(row: _Row) -> tuple[float, float] | None:
        above, below = _number(row.get(numerator)), _number(row.get(denominator))
        return None if above is None or below is None else (above / unit, below)

    return term


def _graded(row: _Row) -> tuple[float, float] | None:
    """Return the NLL and the number of tokens of a sample, whose row has the mean NLL."""
    mean, tokens = _number(row.get("gen_nll")), _number(row.get("grader_tokens"))
    return None if mean is None or tokens is None else (mean * tokens, tokens)


def _grade(time: str, aspect: str) -> _Term:
    def term(row: _Row) -> tuple[float, float] | None:
        grades = row.get(time)
        if not isinstance(grades, dict):
            return None
        value = _number(cast("dict[str, Any]", grades).get(aspect))
        return None if value is None else (value, 1.0)

    return term


def _change(aspect: str) -> _Term:
    before, after = _grade("before", aspect), _grade("after", aspect)

    def term(row: _Row) -> tuple[float, float] | None:
        first, second = before(row), after(row)
        return None if first is None or second is None else (second[0] - first[0], 1.0)

    return term


RATIOS: Final[Mapping[str, RowRatio]] = {
    "ppl": RowRatio(_columns("nelbo", "tokens"), is_exponential=True),
    "nelbo": RowRatio(_columns("nelbo", "tokens")),
    "bits_per_token": RowRatio(_columns("nelbo", "tokens", math.log(2))),
    "bits_per_byte": RowRatio(_columns("nelbo", "bytes", math.log(2))),
    "nelbo_corpus": RowRatio(_columns("nelbo", "tokens")),
    "ppl_corpus": RowRatio(_columns("nelbo", "tokens"), is_exponential=True),
    "bits_per_byte_corpus": RowRatio(_columns("nelbo", "bytes", math.log(2))),
    "gen_ppl": RowRatio(_graded, is_exponential=True),
}
"""Measurements that are not means over rows."""


def pair_rows(first: EvaluationResult, second: EvaluationResult) -> list[tuple[_Row, _Row]]:
    """Return the rows of two results by equal ids; nothing if they have not the same ids."""
    by_id = [_by_id(result.rows) for result in (first, second)]
    if not by_id[0] or by_id[0].keys() != by_id[1].keys():
        return []
    return [(row, by_id[1][key]) for key, row in by_id[0].items()]


def paired_by_rows(
    name: str,
    values: tuple[Measurement, Measurement],
    pairs: Sequence[tuple[_Row, _Row]],
) -> Difference | None:
    """Return the difference of a measurement over paired rows.

    None if it cannot be computed from the rows: each candidate must reproduce both values.
    """
    for ratio in _candidates(name):
        found = [ratio.influences([pair[side] for pair in pairs]) for side in (0, 1)]
        expected = [value.value for value in values]
        if all(_is_close(got[0], want) for got, want in zip(found, expected, strict=True)):
            shift = expected[1] - expected[0]
            moved = [shift + b - a for a, b in zip(found[0][1], found[1][1], strict=True)]
            if all(map(math.isfinite, moved)):
                return mean_difference(moved)._replace(value=shift)
    return None


def _candidates(name: str) -> list[RowRatio]:
    """Return how a measurement may follow from rows: the column of that name first."""
    found = [RowRatio(_column(name))]
    if name in RATIOS:
        found.append(RATIOS[name])
    aspect, _, time = name.rpartition("_")
    found.append(RowRatio(_change(aspect) if time == "change" else _grade(time, aspect)))
    found.append(RowRatio(_grade("before", name)))
    return found


def _column(name: str) -> _Term:
    def term(row: _Row) -> tuple[float, float] | None:
        value = _number(row.get(name))
        return None if value is None else (value, 1.0)

    return term


def _by_id(rows: Sequence[_Row]) -> dict[int | str, _Row]:
    """Return the rows by id; nothing unless every row has its own."""
    found = {row["id"]: row for row in rows if isinstance(row.get("id"), int | str)}
    return found if len(found) == len(rows) else {}


def _number(value: object) -> float | None:
    """Return a number, or a truth value as 0 or 1; None for anything else.

    Numbers whose products could overflow are of no evaluation.
    """
    if isinstance(value, int | float) and abs(value) <= _LARGEST:
        return float(value)
    return None


def _is_close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=1e-9)
