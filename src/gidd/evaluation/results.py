"""Results of evaluations: numbers with standard errors, and everything needed to reproduce them.

result = EvaluationResult(
    kind="ppl", measurements={"ppl": Measurement(23.1, 0.2, 512)}, manifest={...}
)
result.save(Path("ppl.json"))
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, cast, final

from gidd.common.files import explain_damage, read_json, write_json
from gidd.common.limits import RESULT_BYTES
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
        digits = 2 - math.floor(math.log10(self.standard_error)) - 1 if self.standard_error else 4
        digits = min(max(digits, 0), 12)
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What one evaluation measured."""

    kind: str
    """Name of the evaluation: that of its command, e.g. "ppl" for `gidd eval ppl`."""

    measurements: Mapping[str, Measurement]
    """The numbers, by name."""

    manifest: Mapping[str, Any]
    """Versions, model, noise, estimator, precision, tokenizer, data, truncation, seeds: plain data.

    `gidd compare` prints the entries in which two results differ.
    """

    rows: Sequence[Mapping[str, Any]] = field(default=())
    """A table: one row per document, sample, question or setting. A row may have an `id`: two
    results with equal ids are compared in pairs."""

    def save(self, path: Path) -> None:
        """Write the result as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_dict(), RESULT_BYTES)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; numbers that JSON cannot hold are None."""
        numbers = {name: value._asdict() for name, value in self.measurements.items()}
        return {
            "format": RESULT_FORMAT,
            "kind": self.kind,
            "measurements": _plain(numbers),
            "manifest": _plain(self.manifest),
            "rows": _plain(self.rows),
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `save` wrote."""
        if not path.is_file():
            raise DataError(f"{path} is not a file. {_AGAIN}")
        with explain_damage(str(path), _AGAIN, DataError):
            record = read_json(path, _AGAIN, DataError, RESULT_BYTES)
            if record.get("format") != RESULT_FORMAT:
                raise DataError(f"{path} is not a result of format {RESULT_FORMAT}. {_AGAIN}")
            return cls(
                kind=str(record["kind"]),
                measurements={k: _measurement(v) for k, v in record["measurements"].items()},
                manifest=dict(record["manifest"]),
                rows=[dict(row) for row in record["rows"]],
            )


def _measurement(record: dict[str, Any]) -> Measurement:
    value, error = record["value"], record["standard_error"]
    error = None if error is None else float(error)
    if error is not None and not 0 <= error < math.inf:
        raise ValueError(f"a standard error must be finite and at least 0, got {error}")
    value = math.nan if value is None else float(value)
    return Measurement(value, error, int(record["num_samples"]))


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinities become None, other objects text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            items = cast("Mapping[Any, Any]", value)
            return {str(key): _plain(entry) for key, entry in items.items()}
        case list() | tuple():
            return [_plain(entry) for entry in cast("Sequence[Any]", value)]
        case _:
            return str(value)
