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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, final

from gidd.common import files
from gidd.errors import DataError

METRICS_FILE = "metrics.jsonl"
"""Name of the log in the run's folder."""

WALL = frozenset({"seconds", "seconds_left", "tokens_per_second", "mfu"})
"""Metrics that differ between two equal runs."""

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
            raise DataError(
                f"{self.path} cannot be written: {error.strerror}. Check the permissions of "
                f"{folder}, or choose a writable run folder with --out."
            ) from error

    def write(
        self, kind: LineKind, step: int, metrics: Mapping[str, float], samples: Sequence[str] = ()
    ) -> None:
        """Append one line, unless the resumed run already wrote it."""
        if (kind, step) in self._last:
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
            raise DataError(
                f"{self.path} cannot be written: {error}. Free disk space and start the run again."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Read all lines of a log, or of a run's folder, except a last one that is incomplete."""
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.is_file():
        raise DataError(
            f"{path} does not exist. Give the folder of a run, in which `gidd train` writes "
            f"{METRICS_FILE}."
        )
    lines: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            line = _parse_line(data)
            if line is not None:
                lines.append(line)
            elif data.endswith(b"\n"):
                raise DataError(
                    f"{path}, line {number} is damaged: it is not a JSON object with kind and "
                    "step. Delete that line to read the others."
                )
    if not lines:
        raise DataError(f"{path} has no lines yet. Wait for the first step of the run.")
    return lines


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _parse_line(data: bytes) -> dict[str, Any] | None:
    try:
        line: Any = json.loads(data)
    except ValueError:
        return None
    is_valid = isinstance(line, dict) and isinstance(line.get("step"), int) and "kind" in line
    return cast("dict[str, Any]", line) if is_valid else None


def _truncate(path: Path, start: int) -> tuple[int, set[tuple[str, int]]]:
    """Keep the lines of a log up to step `start`; delete the log of a run that starts.

    Returns the number of damaged lines removed, and (kind, step) of the lines of `start`.
    """
    if start == 0 or not path.is_file():
        path.unlink(missing_ok=True)
        return 0, set()
    damaged, last = 0, set[tuple[str, int]]()
    with path.open("rb") as old, files.atomic_write(path) as new:
        for data in old:
            line, ended = _parse_line(data), data.endswith(b"\n")
            damaged += line is None and ended
            if line is not None and line["step"] <= start:
                new.write(data if ended else data + b"\n")
                if line["step"] == start:
                    last.add((line["kind"], start))
    return damaged, last
