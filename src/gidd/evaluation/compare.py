"""Compare two results: their numbers, whether these differ, and settings in which they differ.

compare_results(EvaluationResult.read(a), EvaluationResult.read(b)).numbers
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, cast

import numpy as np

from gidd.common.optional import optional_package
from gidd.errors import ConfigError
from gidd.evaluation.results import EvaluationResult, Measurement, RowRatio, plain_data

ABSENT: Final = "(absent)"  # shown for a setting that only the other result has
_TOLERANCE = 1e-6  # relative difference up to which rows give a measurement
_NOT_SETTINGS = ("seconds", "usage")  # that differ between equal evaluations

SIGNIFICANCE_LEVEL: Final = 0.05  # two-sided: a p-value below it is called significant
FEW_ROWS = 20
"""Rows below which a t-test depends on the distribution of the values."""
HAS_SCIPY: Final = find_spec("scipy") is not None


class Difference(NamedTuple):
    """A difference and a two-sided test of whether it is zero."""

    value: float
    standard_error: float | None = None
    p_value: float | None = None  # None if the standard error is unknown, or scipy is not installed
    is_paired: bool = False
    num_pairs: int = 0


def mean_difference(values: Sequence[float]) -> Difference:
    """Return the mean of differences of pairs, tested by the paired t-test."""
    value, error, count = Measurement.mean(values)
    p_value = None if error is None else _p_value(value, error, count - 1)
    return Difference(value, error, p_value, True, count)


def unpaired_difference(first: Measurement, second: Measurement) -> Difference:
    """Return second - first of independent measurements, tested by Welch's t-test.

    The normal distribution is used if a measurement does not say how many samples it has.
    """
    value = second.value - first.value
    if first.standard_error is None or second.standard_error is None or not math.isfinite(value):
        return Difference(value)
    errors = first.standard_error, second.standard_error
    counts = first.num_samples, second.num_samples
    error, degrees = math.hypot(*errors), math.inf
    if min(counts) > 1 and error:
        # Welch-Satterthwaite, in fractions of the total so that nothing overflows
        degrees = 1 / sum((e / error) ** 4 / (n - 1) for e, n in zip(errors, counts, strict=True))
    return Difference(value, error, _p_value(value, error, degrees))


def _p_value(value: float, error: float, degrees: float) -> float | None:
    """Return P(|T| >= |value / error|) of Student's t, which is normal for infinite `degrees`.

    0 / 0 is 0, because equal measurements do not differ.
    """
    if not HAS_SCIPY:
        return None
    t = value / error if error else math.inf if value else 0.0
    return 2 * float(optional_package("scipy.special", "eval").stdtr(degrees, -abs(t)))


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for several tests by Holm's method."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


class ComparedNumber(NamedTuple):
    """A measurement of both results."""

    name: str
    first: Measurement
    second: Measurement
    difference: Difference  # second minus first
    adjusted_p_value: float | None = None
    """p-value adjusted for the number of tests of the comparison (Holm)."""

    @property
    def num_rows(self) -> int:
        """Number of rows behind the test: pairs, or samples of the smaller result; 0 if unknown."""
        fewest = min(self.first.num_samples, self.second.num_samples)
        return self.difference.num_pairs if self.difference.is_paired else fewest

    @property
    def is_significant(self) -> bool | None:
        """Whether the numbers differ at 5%, after adjustment; None if that cannot be tested."""
        p_value = self.adjusted_p_value
        return None if p_value is None else p_value < SIGNIFICANCE_LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        values: dict[str, Any] = {}
        for name, result in (("first", self.first), ("second", self.second)):
            values |= {name: result.value, f"{name}_standard_error": result.standard_error}
        values |= {"difference": self.difference.value} | self.difference._asdict()
        del values["value"]
        values |= {"adjusted_p_value": self.adjusted_p_value, "is_significant": self.is_significant}
        return plain_data(values)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two results of one kind of evaluation."""

    kind: str
    numbers: Sequence[ComparedNumber]
    settings: Sequence[tuple[str, Any, Any]]
    """Entries of the manifests that differ: keys joined by dots, and both values."""
    only_first: Sequence[str]
    """Measurements that the second result does not have."""
    only_second: Sequence[str]

    @property
    def num_tests(self) -> int:
        """Number of measurements that were tested."""
        return sum(row.adjusted_p_value is not None for row in self.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; numbers that JSON cannot hold are None."""
        return {
            "kind": self.kind,
            "significance_level": SIGNIFICANCE_LEVEL,
            "num_tests": self.num_tests,
            "measurements": {row.name: row.to_dict() for row in self.numbers},
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "settings": {name: {"first": a, "second": b} for name, a, b in self.settings},
        }


def compare_results(first: EvaluationResult, second: EvaluationResult) -> Comparison:
    """Compare the measurements that both results have, in pairs of rows where that is possible."""
    if first.kind != second.kind:
        kinds = f"{first.kind!r} and {second.kind!r}"
        raise ConfigError(f"both results must be of one kind of evaluation, got {kinds}.")
    # p-values cannot be compared by subtraction
    left, right = (
        {name: value for name, value in run.measurements.items() if not name.endswith("_p_value")}
        for run in (first, second)
    )
    numbers = [
        ComparedNumber(name, value, right[name], _difference(name, first, second))
        for name, value in left.items()
        if name in right
    ]
    p_values = [row.difference.p_value for row in numbers]
    adjusted = iter(holm_p_values([p_value for p_value in p_values if p_value is not None]))
    before, after = dict(_flat(first.manifest)), dict(_flat(second.manifest))
    pairs = {key: (before.get(key, ABSENT), after.get(key, ABSENT)) for key in before | after}
    return Comparison(
        kind=first.kind,
        numbers=[
            row._replace(adjusted_p_value=None if p_value is None else next(adjusted))
            for row, p_value in zip(numbers, p_values, strict=True)
        ],
        settings=[(name, a, b) for name, (a, b) in pairs.items() if a != b],
        only_first=[name for name in left if name not in right],
        only_second=[name for name in right if name not in left],
    )


def _difference(name: str, first: EvaluationResult, second: EvaluationResult) -> Difference:
    """Return the difference, without a test for numbers that have no random error.

    It is tested in pairs of rows with equal ids, if there are two or more and the rows give both
    measurements.
    """
    values = first.measurements[name], second.measurements[name]
    errors = [value.standard_error for value in values]
    if None in errors or not any(errors):
        return Difference(values[1].value - values[0].value)
    unpaired = unpaired_difference(*values)
    by_id = [
        {row["id"]: row for row in result.rows if isinstance(row.get("id"), int | str)}
        for result in (first, second)
    ]
    has_ids = len(by_id[0]) == len(first.rows) == len(second.rows)  # every row has its own
    if not has_ids or len(by_id[0]) < 2 or by_id[0].keys() != by_id[1].keys():
        return unpaired
    shift, influences = 0.0, np.zeros(len(by_id[0]))
    for sign, result, rows in zip((-1, 1), (first, second), by_id, strict=True):
        ratio = result.ratios.get(name, RowRatio(name)).over([rows[key] for key in by_id[0]])
        value = result.measurements[name].value
        if not math.isclose(ratio.value, value, rel_tol=_TOLERANCE, abs_tol=1e-9):
            return unpaired
        shift += sign * value
        influences += sign * np.array(ratio.influences)
    if not np.isfinite(influences + shift).all():
        return unpaired
    return mean_difference((influences + shift).tolist())._replace(value=shift)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of a manifest by dotted keys; a list of plain values is one entry."""
    if any(name == word or name.endswith((f".{word}", f"_{word}")) for word in _NOT_SETTINGS):
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[Any]", value)))
        if not any(isinstance(entry, dict | list) for _, entry in items):
            items = []
    if not items:
        yield name, plain_data(value)
    for key, entry in items:
        yield from _flat(entry, f"{name}.{key}" if name else str(key))
