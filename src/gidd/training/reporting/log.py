"""The numbers of a run as a file: one JSON object per line, written as they come.

    {"kind": "training", "step": 20, "loss": 6.25, "wall": {"seconds": 3.1}}
    {"kind": "evaluation", "step": 20, "nelbo": 6.5, "samples": ["..."], "wall": {"seconds": 4.0}}

Numbers come back to the last bit; those that are not finite are the strings "nan", "inf", "-inf".
What depends on the machine and the hour stands under "wall": the rest of the log of a run that was
ended and continued equals the log of one that was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, final

from gidd.common import files
from gidd.errors import DataError

METRICS_FILE = "metrics.jsonl"
"""Name of the log in the folder of a run."""

WALL = frozenset({"seconds", "seconds_left", "tokens_per_second", "mfu"})
"""Metrics that two equal runs do not share."""

LineKind = Literal["training", "evaluation"]


@final
class MetricsLog:
    """Appends to the log of a run that begins, or continues after step `start`.

    What an ended run wrote beyond `start` is work that was lost and is done again; these lines go.
    """

    def __init__(self, folder: Path, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / METRICS_FILE
        self.num_damaged, self._last = _cut(self.path, start)
        # one write per line, past all buffers: a kill tears at most the line being written
        self._file = self.path.open("ab", buffering=0)

    def write(
        self, kind: LineKind, step: int, metrics: Mapping[str, float], samples: Sequence[str] = ()
    ) -> None:
        """Append one line, unless the continued run already had it."""
        if (kind, step) in self._last:
            return
        line: dict[str, object] = {"kind": kind, "step": step}
        line |= {name: _json(value) for name, value in metrics.items() if name not in WALL}
        if samples:
            line["samples"] = list(samples)
        line["wall"] = {name: _json(value) for name, value in metrics.items() if name in WALL}
        data = json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            written = self._file.write(data)
        except OSError as error:
            raise DataError(self._cannot_write(str(error))) from error
        if written != len(data):
            raise DataError(self._cannot_write("the disk is full"))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _cannot_write(self, reason: str) -> str:
        return f"{self.path} cannot be written: {reason}. Make room and start the run again."


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a log, without a last one that is only half written.

    Args:
        path: The log, or the folder of its run.
    """
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.is_file():
        raise DataError(
            f"{path} does not exist. Give the folder of a run, one that `gidd train` has written "
            f"{METRICS_FILE} to."
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
                    "step. Delete that line to go on without it."
                )
    if not lines:
        raise DataError(f"{path} has no lines yet. Wait for the first step of the run.")
    return lines


def read_whole(path: Path) -> Iterator[dict[str, Any]]:
    """Every line of a log that can be read; damaged ones are left out."""
    with path.open("rb") as file:
        for data in file:
            line = _parse_line(data)
            if line is not None:
                yield line


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _parse_line(data: bytes) -> dict[str, Any] | None:
    try:
        line: object = json.loads(data)
    except ValueError:
        return None
    if not isinstance(line, dict):
        return None
    line = cast("dict[str, Any]", line)
    return line if isinstance(line.get("step"), int) and "kind" in line else None


def _cut(path: Path, start: int) -> tuple[int, set[tuple[str, int]]]:
    """Leave what a run up to `start` has written, and nothing if it begins.

    Returns:
        The number of damaged lines that were left out, and what is there already of `start`.
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
