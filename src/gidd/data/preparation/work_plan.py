"""The plan of a preparation: the order of documents, the split and the tasks.

It depends on the sources and settings, not on the machine; `tasks/plan.json` keeps it for resuming.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

from gidd.common.config.allowed import choice, require_arguments
from gidd.common.config.codec import from_plain
from gidd.common.files import MANIFEST_BYTES, read_json, write_json
from gidd.common.terminal import shorten
from gidd.data.corpora.documents import Documents
from gidd.data.manifest import DATA_MANIFEST
from gidd.data.processes import ReportProgress, run_tasks
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError

TASKS = "tasks"
"""Folder of the plan and the records of finished tasks."""

PLAN = "plan.json"
TRAIN = "train"
VALIDATION = "validation"
_BYTES_PER_TASK = 256 << 20

Range = tuple[int, int, int]
"""Index of a source, and a range start .. stop of its documents."""

Task = dict[str, list[Range]]
"""Consecutive documents, by split, that become at most one shard per split."""

ValidationOrder = Literal["last", "spaced"]
"""Documents to hold out: the last ones of all, or the last ones of every task."""

DataFormat = Literal["text", "chat"]
"""What a document is: a text, or a conversation of which the answers are generated."""

Validation = float | Literal["auto"]
"""Number of documents to hold out, or a fraction below 1; "auto": a tenth, at least one."""


@dataclass(frozen=True)
class _Notes:
    """Fields of a plan besides its settings."""

    sources: tuple[str, ...]
    command: str
    known: Mapping[str, float]
    counts: tuple[int, ...]


def make_tasks(
    counts: Sequence[int], held_out: int, tasks: int, order: ValidationOrder = "last"
) -> list[Task]:
    """Divide all documents into `tasks` ranges of equal length, and each by split."""
    ends = [0, *accumulate(counts)]
    total = ends[-1]
    result: list[Task] = []
    for number in range(tasks):
        start, stop = total * number // tasks, total * (number + 1) // tasks
        if order == "last":
            border = min(max(start, total - held_out), stop)
        else:
            border = stop - (stop * held_out // total - start * held_out // total)
        ranges = {TRAIN: _ranges(ends, start, border), VALIDATION: _ranges(ends, border, stop)}
        result.append({split: found for split, found in ranges.items() if found})
    return result


def _ranges(ends: Sequence[int], start: int, stop: int) -> list[Range]:
    """Return the ranges, source by source, of documents start .. stop - 1 of all sources."""
    result: list[Range] = []
    source = bisect_right(ends, start) - 1
    while start < stop:
        first, end = ends[source], min(stop, ends[source + 1])
        if start < end:
            result.append((source, start - first, end - first))
        start, source = max(start, end), source + 1
    return result


def num_held_out(validation: Validation, documents: int) -> int:
    """Return the number of held-out documents: `validation`, or that fraction if below 1."""
    if validation == "auto":
        return min(max(1, documents // 10), documents - 1)
    if not (validation >= 0 and (isinstance(validation, int) or validation < 1)):
        raise ConfigError(
            f"validation must be a number of documents or a fraction in [0, 1), got {validation}."
        )
    held_out = validation if isinstance(validation, int) else int(validation * documents)
    if held_out >= documents:
        raise DataError(
            f"validation must leave documents to train on, got {held_out} of {documents} "
            "documents. Hold out fewer: --data.validation N, or `gidd data prepare --validation N`."
        )
    return int(held_out)


def plan_settings(
    documents: Sequence[Documents],
    tokenizer: Tokenizer,
    validation: Validation,
    validation_order: ValidationOrder,
    tasks: int | None,
    format: DataFormat = "text",
) -> dict[str, Any]:
    """Return everything the shards depend on, as JSON; a run can be resumed if it is equal."""
    require_arguments(
        validation_order=(validation_order, choice(get_args(ValidationOrder))),
        format=(format, choice(get_args(DataFormat))),
    )
    chat = {"format": format, "chat_template": tokenizer.chat_template}
    return ({} if format == "text" else chat) | {
        "tokenizer": tokenizer.fingerprint,
        "special tokens": [tokenizer.end, tokenizer.pad, tokenizer.mask],
        "validation": validation,
        "validation_order": validation_order,
        "tasks": tasks,
        "documents": [[source.name, *source.stamp()] for source in documents],
    }


def plan_digest(plan: dict[str, Any]) -> str:
    """Return the SHA-256 of a plan; the record of a finished task is valid for that plan only."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def read_plan(out: Path) -> dict[str, Any]:
    """Read the plan of a folder; its settings are compared with those of the run."""
    path, remedy = out / TASKS / PLAN, f"Delete the folder {out} and prepare again."
    plan = read_json(path, remedy, DataError, MANIFEST_BYTES)
    known = {field.name: plan.get(field.name) for field in fields(_Notes)}
    try:
        if min(from_plain(_Notes, known, "plan", has_kinds=False).counts, default=0) < 0:
            raise ConfigError(f"counts must not be negative, got {shorten(plan['counts'])}.")
    except ConfigError as error:
        raise DataError(f"{path} is not a valid plan: {error} {remedy}") from error
    return plan


def load_or_create_plan(
    out: Path,
    documents: Sequence[Documents],
    settings: dict[str, Any],
    notes: dict[str, Any],
    workers: int,
) -> dict[str, Any]:
    """Return the plan of the run to resume, or count the documents and write a new plan."""
    path = out / TASKS / PLAN
    if path.is_file():
        plan = read_plan(out)
        changed = [field for field, value in settings.items() if plan.get(field) != value]
        if not changed and len(plan["counts"]) != len(documents):
            changed = ["counts"]
        if not changed:
            return plan
        if any((out / TASKS).glob("[0-9]*.json")):
            raise DataError(
                f"{out} was started with other {' and '.join(changed)}; see {path}. "
                "Use the same sources and settings, delete the folder, or choose another --out."
            )  # without finished tasks, nothing is lost by starting again
    elif any(out.glob("*/*.ds")) or (out / DATA_MANIFEST).exists():
        raise DataError(f"{out} has shards but no {TASKS}/{PLAN}. Choose another --out folder.")
    is_slow = sum(not source.quick_count for source in documents) > 1
    workers = workers if is_slow else min(workers, 1)  # `run_tasks` raises if it is below 1
    counts = run_tasks(_count, documents, workers, lambda _: None)
    plan = settings | notes | {"counts": counts}
    if not sum(counts) or not _size(plan):
        raise DataError(f"{', '.join(notes['sources'])}: there is no document. Check the sources.")
    tasks_of(plan)  # raises on invalid settings before they are recorded
    write_json(path, plan, MANIFEST_BYTES)
    return plan


def tasks_of(plan: dict[str, Any]) -> list[Task]:
    """Return the tasks of a plan: as many as given, else 8, or one per 256 MB above 2 GB."""
    given, total = plan["tasks"], sum(plan["counts"])
    if given is not None and given < 1:
        raise ConfigError(f"tasks must be at least 1, got {given}. Omit it to use the default.")
    tasks = min(total, given or max(8, math.ceil(_size(plan) / _BYTES_PER_TASK)))
    held_out = num_held_out(plan["validation"], total)
    return make_tasks(plan["counts"], held_out, tasks, plan["validation_order"])


def _size(plan: dict[str, Any]) -> int:
    return sum(size for _, size, *_ in plan["documents"])


def _count(documents: Documents, report: ReportProgress) -> int:
    report(0)
    return documents.count()
