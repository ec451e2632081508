"""Results of evaluations: numbers with standard errors, and everything needed to reproduce them.

EvaluationResult.read(Path("ppl.json")).measurements["ppl"].value
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from gidd.common.files import MANIFEST_BYTES, explain_damage, read_json, write_json
from gidd.errors import DataError

RESULT_FORMAT = 1
_AGAIN = "Evaluate again, or name a file written by `gidd eval`."


class Measurement(NamedTuple):
    """A number, its standard error, and the number of independent samples behind it."""

    value: float
    standard_error: float | None = None
    """None if the number has no random error, or if a single sample does not show it."""
    num_samples: int = 1

    @classmethod
    def mean(cls, values: Sequence[float]) -> Self:
        """Return the mean of independent values; the standard error needs at least two."""
        count = len(values)
        if not count:
            return cls(math.nan, None, 0)
        error = statistics.stdev(values) / math.sqrt(count) if count > 1 else None
        return cls(statistics.fmean(values), error, count)

    def __str__(self) -> str:
        if self.standard_error is None:
            return f"{self.value:.4g}"
        digits = 1 - math.floor(math.log10(self.standard_error)) if self.standard_error else 4
        digits = min(max(digits, 0), 12)
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


class RatioOfSums(NamedTuple):
    """A ratio of sums over independent rows."""

    value: float
    influences: list[float]  # how much each row moves the ratio, to first order (delta method)

    @property
    def standard_error(self) -> float | None:
        """The standard error; None for a single row, which does not show it."""
        count = len(self.influences)
        return statistics.stdev(self.influences) / math.sqrt(count) if count > 1 else None


def ratio_of_sums(
    numerators: ArrayLike, denominators: ArrayLike, *, exponential: bool = False
) -> RatioOfSums:
    """Return sum(numerators) / sum(denominators) or its exponential; NaN if they sum to 0."""
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    weight = float(below.sum())
    if not weight > 0:
        return RatioOfSums(math.nan, [])
    ratio = float(above.sum()) / weight
    value = math.exp(min(ratio, 700.0)) if exponential else ratio
    moved = (above - ratio * below) * (len(above) / weight) * (value if exponential else 1.0)
    return RatioOfSums(value, moved.tolist())


class RowRatio(NamedTuple):
    """How a measurement follows from the rows of a result: the columns of a ratio of sums."""

    numerator: str
    denominator: str | None = None  # None for a mean over the rows that have the numerator
    unit: float = 1.0  # what the numerator is divided by, such as log(2) for bits
    is_weighted: bool = False
    """Whether the numerator is a mean per denominator, to be multiplied by it."""
    is_exponential: bool = False

    def over(self, rows: Sequence[Mapping[str, Any]]) -> RatioOfSums:
        """Return the measurement over some rows; a row without the columns has no weight."""
        above, below = list[float](), list[float]()
        for row in rows:
            pair = row.get(self.numerator), row.get(self.denominator) if self.denominator else 1.0
            # larger numbers are of no evaluation, and their products could overflow
            has_both = all(isinstance(x, int | float) and abs(x) <= 1e100 for x in pair)
            x, weight = cast("tuple[float, float]", pair) if has_both else (0.0, 0.0)
            above.append(x * (weight if self.is_weighted else 1.0) / self.unit)
            below.append(weight)
        return ratio_of_sums(above, below, exponential=self.is_exponential)


_NATS, _BITS = RowRatio("nelbo", "tokens"), RowRatio("nelbo", "bytes", math.log(2))
RATIOS: Final[dict[str, RowRatio]] = {
    "nelbo": _NATS,
    "ppl": _NATS._replace(is_exponential=True),
    "bits_per_token": _NATS._replace(unit=math.log(2)),
    "bits_per_byte": _BITS,
    "nelbo_corpus": _NATS,
    "ppl_corpus": _NATS._replace(is_exponential=True),
    "bits_per_byte_corpus": _BITS,
    "gen_ppl": RowRatio("gen_nll", "grader_tokens", is_weighted=True, is_exponential=True),
}
"""Measurements of this library that are not means of the column of their name."""


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What one evaluation measured."""

    kind: str
    """Name of the command, e.g. "ppl" of `gidd eval ppl`."""
    measurements: Mapping[str, Measurement]
    """The numbers, by name."""
    manifest: Mapping[str, Any]
    """Versions, model, noise, estimator, precision, tokenizer, data, seeds, ... as plain data."""
    rows: Sequence[Mapping[str, Any]] = field(default=())
    """One row per document, sample, question or setting; rows with equal `id` are compared."""
    ratios: Mapping[str, RowRatio] = field(default_factory=lambda: RATIOS)
    """Measurements that are ratios of sums over rows; others may be means of their column."""

    def save(self, path: Path) -> None:
        """Write the result as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_dict(), MANIFEST_BYTES)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; numbers that JSON cannot hold are None."""
        numbers = {name: value._asdict() for name, value in self.measurements.items()}
        return {
            "format": RESULT_FORMAT,
            "kind": self.kind,
            "measurements": plain_data(numbers),
            "manifest": plain_data(self.manifest),
            "ratios": {n: r._asdict() for n, r in self.ratios.items() if n in self.measurements},
            "rows": plain_data(self.rows),
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `save` wrote."""
        if not path.is_file():
            raise DataError(f"{path} is not a file. {_AGAIN}")
        with explain_damage(str(path), _AGAIN, DataError):
            record = read_json(path, _AGAIN, DataError, MANIFEST_BYTES)
            if record.get("format") != RESULT_FORMAT:
                raise DataError(f"{path} is not a result of format {RESULT_FORMAT}. {_AGAIN}")
            ratios = {name: RowRatio(**ratio) for name, ratio in record.get("ratios", {}).items()}
            return cls(
                kind=str(record["kind"]),
                measurements={k: _measurement(v) for k, v in record["measurements"].items()},
                manifest=dict(record["manifest"]),
                rows=[dict(row) for row in record["rows"]],
                ratios=RATIOS | ratios,  # files of older versions name none
            )


def _measurement(record: dict[str, Any]) -> Measurement:
    value, error = record["value"], record["standard_error"]
    error = None if error is None else float(error)
    if error is not None and not 0 <= error < math.inf:
        raise ValueError(f"a standard error must be finite and at least 0, got {error}")
    value = math.nan if value is None else float(value)
    return Measurement(value, error, int(record["num_samples"]))


def plain_data(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinities become None, other objects text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            items = cast("Mapping[Any, Any]", value)
            return {str(key): plain_data(entry) for key, entry in items.items()}
        case list() | tuple():
            return [plain_data(entry) for entry in cast("Sequence[Any]", value)]
        case _:
            return str(value)
