"""What is to be done, fixed before it begins: the order, the split and the tasks.

All of it is a function of the sources and of the settings, never of the machine. The plan is
written to `tasks/plan.json`, so that a run that continues another does the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, final

from gidd.common.files import read_json, write_json
from gidd.data.corpora.documents import Documents
from gidd.data.manifest import DATA_MANIFEST
from gidd.data.preparation.workers import ReportProgress, run
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError

TASKS = "tasks"
"""Folder of the plan and of the records of finished tasks."""

PLAN = "plan.json"
TRAIN = "train"
VALIDATION = "validation"
_BYTES_PER_TASK = 256 << 20

Range = tuple[int, int, int]
"""Number of a source, and its documents from .. to."""


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """A run of neighbouring documents that becomes at most one shard per split."""

    number: int
    ranges: dict[str, list[Range]]

    @property
    def name(self) -> str:
        """Name of its shards and of its record."""
        return f"{self.number:05d}"


def make_tasks(counts: Sequence[int], held_out: int, tasks: int) -> list[Task]:
    """Cut all documents into `tasks` runs of equal length, and each at the border of the split."""
    ends = [0, *accumulate(counts)]
    total = ends[-1]
    border = total - held_out
    result: list[Task] = []
    for number in range(tasks):
        start, stop = total * number // tasks, total * (number + 1) // tasks
        ranges = {
            TRAIN: _ranges(ends, start, min(stop, border)),
            VALIDATION: _ranges(ends, max(start, border), stop),
        }
        result.append(Task(number=number, ranges={k: v for k, v in ranges.items() if v}))
    return result


def _ranges(ends: Sequence[int], start: int, stop: int) -> list[Range]:
    """Documents start .. stop - 1 of the whole, source by source."""
    result: list[Range] = []
    source = bisect_right(ends, start) - 1
    while start < stop:
        first, end = ends[source], min(stop, ends[source + 1])
        if start < end:
            result.append((source, start - first, end - first))
        start, source = max(start, end), source + 1
    return result


def num_tasks(asked: int | None, documents: int, size: int) -> int:
    """Number of tasks: as asked, else 8, or one for each 256 MB; never more than documents."""
    if asked is not None and asked < 1:
        raise ConfigError(f"tasks must be at least 1, got {asked}. Leave it out to let us choose.")
    return min(documents, asked or max(8, math.ceil(size / _BYTES_PER_TASK)))


def num_held_out(validation: float, documents: int) -> int:
    """Number of documents at the end that are for validation: a count, or a share below 1."""
    if not (validation >= 0 and (isinstance(validation, int) or validation < 1)):
        raise ConfigError(
            f"validation must be a number of documents or a share in [0, 1), got {validation}. "
            "Use 100 for the last hundred documents, 0.01 for the last hundredth."
        )
    held_out = validation if isinstance(validation, int) else int(validation * documents)
    if held_out >= documents:
        raise DataError(
            f"validation asks for {held_out} documents, but the sources have {documents}, which "
            "leaves none to train on. Ask for fewer."
        )
    return int(held_out)


def plan_settings(
    documents: Sequence[Documents], tokenizer: Tokenizer, validation: float, tasks: int | None
) -> dict[str, Any]:
    """All that the shards depend on, as JSON: two runs may share a folder if it is equal."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "special tokens": [tokenizer.end, tokenizer.pad, tokenizer.mask],
        "validation": validation,
        "tasks": tasks,
        "documents": [[source.name, *source.stamp()] for source in documents],
    }


def plan_digest(plan: dict[str, Any]) -> str:
    """SHA-256 of a plan; a finished task's record holds it, and counts for that plan only."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def read_plan(out: Path) -> dict[str, Any]:
    """The plan of a folder."""
    path = out / TASKS / PLAN
    return read_json(path, f"Delete the folder {out} and prepare again.", DataError)


def load_or_create_plan(
    out: Path,
    documents: Sequence[Documents],
    settings: dict[str, Any],
    notes: dict[str, Any],
    workers: int,
) -> dict[str, Any]:
    """The plan of the run that is continued, or a new one: how many documents each source has."""
    path = out / TASKS / PLAN
    if path.is_file():
        plan = read_plan(out)
        changed = [field for field, value in settings.items() if plan.get(field) != value]
        if not changed:
            return plan
        if any((out / TASKS).glob("[0-9]*.json")):
            raise DataError(
                f"{out} was begun with other {' and '.join(changed)}, as {path} records. "
                "Use the same sources and settings, delete the folder, or choose another --out."
            )  # if nothing was finished, nothing is lost by beginning anew
    elif any(out.glob("*/*.ds")) or (out / DATA_MANIFEST).exists():
        raise DataError(
            f"{out} holds shards but no {TASKS}/{PLAN}: they are not of this preparation. "
            "Choose another --out folder."
        )
    long = sum(not source.quick_count for source in documents) > 1
    counts = run(
        _count, documents, workers if long else min(workers, 1), lambda _documents, _tokens: None
    )
    plan = settings | notes | {"counts": counts}
    if not sum(counts) or not _size(plan):
        raise DataError(
            f"{', '.join(notes['sources'])}: there is no document in it. Check the sources."
        )
    tasks_of(plan)  # refuses bad settings before they are recorded
    write_json(path, plan)
    return plan


def tasks_of(plan: dict[str, Any]) -> list[Task]:
    """The tasks of a plan."""
    total = sum(plan["counts"])
    held_out = num_held_out(plan["validation"], total)
    return make_tasks(plan["counts"], held_out, num_tasks(plan["tasks"], total, _size(plan)))


def _size(plan: dict[str, Any]) -> int:
    """Bytes of all sources, as their stamps say."""
    return sum(size for _, size, *_ in plan["documents"])


def _count(documents: Documents, report: ReportProgress) -> int:
    report(0, 0)
    return documents.count()
