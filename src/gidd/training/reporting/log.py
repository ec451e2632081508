"""The metrics log of a run: one JSON object per line, written as soon as it is reported.

    {"kind": "training", "step": 20, "loss": 6.25, "wall": {"seconds": 3.1}}
    {"kind": "evaluation", "step": 20, "nelbo": 6.5, "samples": ["..."], "wall": {"seconds": 4.0}}

Numbers are read back exactly; non-finite ones are the strings "nan", "inf", "-inf". Metrics that
depend on the machine and the time are under "wall"; the rest of the log of an interrupted and
resumed run equals that of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, final

from gidd.common import files
from gidd.common.files import RECORD_BYTES, parse_json
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError

METRICS_FILE = "metrics.jsonl"  # name of the log in the run's folder
WALL = frozenset({"seconds", "seconds_left", "tokens_per_second", "mfu"})
"""Metrics that differ between two equal runs."""

_NO_METRICS = frozenset({"kind", "step", "samples", "wall"})
_NOT_FINITE = ("nan", "inf", "-inf")

LineKind = Literal["training", "evaluation"]


@final
class MetricsLog:
    """Appends to the log of a run that starts, or resumes from step `start`.

    Lines of an interrupted run beyond `start` are removed: those steps are trained again.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self.path = folder / METRICS_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.num_damaged, self._last = _truncate(self.path, start)
            # one unbuffered write per line: a kill truncates at most the line being written
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            problem = f"{self.path} cannot be written: {error.strerror}"
            raise DataError(f"{problem}. Choose a writable folder with --out.") from error

    def write(
        self, kind: LineKind, step: int, metrics: Mapping[str, float], samples: Sequence[str] = ()
    ) -> None:
        """Append one line, unless the resumed run already wrote it."""
        if self.has(kind, step):
            return
        line: dict[str, object] = {"kind": kind, "step": step}
        line |= {name: _json(value) for name, value in metrics.items() if name not in WALL}
        if samples:
            line["samples"] = list(samples)
        line["wall"] = {name: _json(value) for name, value in metrics.items() if name in WALL}
        data = json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            if self._file.write(data) != len(data):
                raise OSError("the disk is full")
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error}. Free disk space.") from error

    def has(self, kind: LineKind, step: int) -> bool:
        """Return whether an earlier process of the resumed run wrote this line, at `start`."""
        return (kind, step) in self._last

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Read all lines of a log, or of a run's folder, except a last one that is incomplete."""
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist. Give the folder of a run of `gidd train`.")
    lines: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for line_number, data in enumerate(_bounded_lines(file), start=1):
            try:
                lines.append(_parse_line(data))
            except ValueError as error:
                if not data.endswith(b"\n") and len(data) <= RECORD_BYTES.value:
                    break  # the run is writing it, or was killed
                problem = f"{path}, line {line_number} is damaged: {error}"
                raise DataError(f"{problem}. Delete it to read the others.") from error
    if not lines:
        raise DataError(f"{path} has no lines yet. Wait for the first step of the run.")
    return lines


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log; of one that is too long, the beginning."""
    most = RECORD_BYTES.value + 1
    while data := file.readline(most):
        yield data
        while len(data) == most and not data.endswith(b"\n"):  # skip the rest
            data = file.readline(most)


def _parse_line(data: bytes) -> dict[str, Any]:
    """Return the metrics of a line; raise `ValueError` with the reason if it is damaged."""
    RECORD_BYTES.require(len(data), "a line", DataError)
    try:
        line: Any = parse_json(data, "a line")
    except ConfigError:  # more values than allowed
        raise
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise ValueError("it is not a JSON object with kind and step")
    fields = cast("dict[str, Any]", line)
    step, wall = fields.get("step"), fields.get("wall", {})
    if not isinstance(fields.get("kind"), str) or not isinstance(wall, dict):
        raise ValueError("kind must be a string and wall an object")
    if type(step) is not int or not 0 <= step < 2**63:
        raise ValueError(f"step must be a number of steps, got {shorten(step)}")
    if not isinstance(fields.get("samples", []), list):
        raise ValueError("samples must be a list")
    for name, value in [*fields.items(), *cast("dict[str, Any]", wall).items()]:
        # as `_json` writes them; Python's JSON also reads NaN and 1e999
        is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
        if name not in _NO_METRICS and not is_number and value not in _NOT_FINITE:
            raise ValueError(f"{shorten(name)} must be a number, got {shorten(value)}")
    return fields


def _truncate(path: Path, start: int) -> tuple[int, set[tuple[str, int]]]:
    """Keep the lines up to `start`; return the number of damaged ones, and the kinds at `start`."""
    if start == 0 or not path.is_file():
        path.unlink(missing_ok=True)
        return 0, set()
    damaged, last = 0, set[tuple[str, int]]()
    with path.open("rb") as old, files.atomic_write(path) as new:
        for data in _bounded_lines(old):
            is_complete = data.endswith(b"\n")
            try:
                line = _parse_line(data)
            except ValueError:
                damaged += is_complete or len(data) > RECORD_BYTES.value
                continue
            if line["step"] <= start:
                new.write(data if is_complete else data + b"\n")
            if line["step"] == start:
                last.add((line["kind"], start))
    return damaged, last
