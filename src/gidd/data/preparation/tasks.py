"""The plan of a preparation and its tasks: documents to one shard per split, then a record.

The plan (order of documents, split, tasks) depends on the sources and settings, not on the machine;
`tasks/plan.json` keeps it for resuming.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gidd.common.config.allowed import choice, require_arguments
from gidd.common.config.codec import ADDED_LATER, from_plain
from gidd.common.files import (
    MANIFEST_BYTES,
    PIECE_CHARACTERS,
    atomic_write,
    read_json,
    sha256,
    write_json,
)
from gidd.common.terminal import shorten
from gidd.data.chat import encode_chat, parse_chat
from gidd.data.corpora.documents import Documents, Mark, named, read_ranges
from gidd.data.manifest import DATA_MANIFEST, GIVEN, INDEX, ShardRecord
from gidd.data.processes import ReportProgress, run_tasks
from gidd.data.tokenizers import Tokenizer
from gidd.data.tokenizers.encoding import cut
from gidd.errors import ConfigError, DataError, GiddError

TASKS = "tasks"  # folder of the plan and the records of finished tasks
PLAN = "plan.json"
TRAIN = "train"
VALIDATION = "validation"
_BYTES_PER_TASK = 256 << 20
_BATCH_CHARACTERS = 1 << 21
_BATCH_PIECES = 4096

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
    marks: tuple[tuple[Mark, ...], ...] = field(default=(), metadata={ADDED_LATER: True})


def make_tasks(
    counts: Sequence[int], held_out: int, tasks: int, order: ValidationOrder = "last"
) -> list[Task]:
    """Divide all documents into `tasks` ranges of equal length, and each by split."""
    ends = [0, *accumulate(counts)]
    total = ends[-1]
    result: list[Task] = []
    for index in range(tasks):
        start, stop = total * index // tasks, total * (index + 1) // tasks
        if order == "last":
            border = min(max(start, total - held_out), stop)
        else:
            border = stop - (stop * held_out // total - start * held_out // total)
        ranges = {TRAIN: _ranges(ends, start, border), VALIDATION: _ranges(ends, border, stop)}
        result.append({split: parts for split, parts in ranges.items() if parts})
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
            "documents (a text file is one, a line of JSON lines is one). Hold out fewer: "
            "--data.validation N, or `gidd data prepare --validation N`."
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
    known = {field.name: plan[field.name] for field in fields(_Notes) if field.name in plan}
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
        changed = [name for name, value in settings.items() if plan.get(name) != value]
        if not changed:
            lists = ("counts", "marks")
            changed = [name for name in lists if len(plan.get(name, documents)) != len(documents)]
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
    counted = run_tasks(_count, documents, workers, lambda _: None)
    plan = settings | notes | {"counts": [count for count, _ in counted]}
    if not sum(plan["counts"]) or not _size(plan):
        raise DataError(f"{', '.join(notes['sources'])}: there is no document. Check the sources.")
    if any(marks := [marks for _, marks in counted]):
        plan["marks"] = marks
    tasks_of(plan)  # raises on invalid settings before they are recorded
    write_json(path, plan, MANIFEST_BYTES)
    return plan


def tasks_of(plan: dict[str, Any]) -> list[Task]:
    """Return the tasks of a plan: as many as given, else 8, or one per 256 MB above 2 GB."""
    num_tasks, total = plan["tasks"], sum(plan["counts"])
    if num_tasks is not None and num_tasks < 1:
        raise ConfigError(f"tasks must be at least 1, got {num_tasks}. Omit it to use the default.")
    tasks = min(total, num_tasks or max(8, math.ceil(_size(plan) / _BYTES_PER_TASK)))
    held_out = num_held_out(plan["validation"], total)
    return make_tasks(plan["counts"], held_out, tasks, plan["validation_order"])


def _size(plan: dict[str, Any]) -> int:
    return sum(size for _, size, *_ in plan["documents"])


def _count(documents: Documents, report: ReportProgress) -> tuple[int, list[Mark]]:
    report(0)
    return documents.count_with_marks()


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task with everything a worker process needs."""

    out: Path
    name: str
    """Name of the shards and of the record."""
    dtype: Literal["uint16", "uint32"]
    plan: str
    """Digest of the plan that the task belongs to."""
    format: DataFormat
    parts: dict[str, list[tuple[Documents, int, int]]]
    """By split: sources and ranges start .. stop of their documents."""

    def documents(self, split: str) -> int:
        """Return the number of documents of a split."""
        return sum(stop - start for _, start, stop in self.parts[split])

    def file(self, split: str) -> str:
        """Return the token file of a split, relative to the output folder."""
        return f"{split}/{self.name}.ds"

    @property
    def record(self) -> Path:
        """Path of the record, which exists if the task is finished."""
        return self.out / TASKS / f"{self.name}.json"


def make_work(
    out: Path, plan: dict[str, Any], documents: Sequence[Documents], tokenizer: Tokenizer
) -> tuple[Work, ...]:
    """Return the tasks of a plan, with the sources instead of their indices."""
    dtype = "uint16" if tokenizer.vocab.size <= 1 << 16 else "uint32"
    digest, work = plan_digest(plan), list[Work]()
    marks = plan.get("marks", [()] * len(documents))
    documents = [source.with_marks(places) for source, places in zip(documents, marks, strict=True)]
    for index, task in enumerate(tasks_of(plan)):
        parts = {
            split: [(documents[source], start, stop) for source, start, stop in ranges]
            for split, ranges in task.items()
        }
        name, form = f"{index:05d}", plan.get("format", "text")
        work.append(Work(out=out, name=name, dtype=dtype, plan=digest, format=form, parts=parts))
    return tuple(work)


def write_shards(work: Work, report: ReportProgress) -> None:
    """Write the shards and then the record of a task, with the tokenizer of the output folder."""
    tokenizer = tokenizer_of(work.out, work.plan)
    shards: dict[str, Any] = {}
    for split, parts in work.parts.items():
        documents = read_ranges(parts)
        if work.format == "chat":
            encoded = _encode_chats(documents, tokenizer)
        else:
            encoded = _encode_texts(_pieces(documents, tokenizer), tokenizer)
        shards[split] = _write_shard(work, work.file(split), encoded, report).to_json()
    write_json(work.record, {"plan": work.plan, "shards": shards})


def finished(work: Work) -> dict[str, ShardRecord] | None:
    """Return the shards of a task, or None if a record or shard is missing or incomplete."""
    try:
        record = read_json(work.record, "", DataError)
        shards = {
            split: from_plain(ShardRecord, record["shards"][split], split, has_kinds=False)
            for split in work.parts
        }
    except (GiddError, KeyError, TypeError):
        return None
    for split, shard in shards.items():
        sizes = {work.out / file: size for file, (size, _) in shard.files(work.dtype).items()}
        is_complete = all(p.is_file() and p.stat().st_size == sizes[p] for p in sizes)
        expected = work.file(split), work.documents(split)
        if not is_complete or (shard.file, shard.documents) != expected:
            return None
    return shards if record.get("plan") == work.plan else None


@lru_cache(maxsize=1)
def tokenizer_of(out: Path, plan: str) -> Tokenizer:
    """Load the tokenizer of a folder; cached by plan, which determines the tokenizer."""
    return Tokenizer.load(out)


_Piece = tuple[str, str, bool]  # document, text, and whether it is the document's last piece


class _Encoded(NamedTuple):
    """Tokens of a document or of a piece of it."""

    tokens: list[int]
    is_last: bool
    given: list[bool] | None = None


def _write_shard(
    work: Work, file: str, batches: Iterable[list[_Encoded]], report: ReportProgress
) -> ShardRecord:
    dtype = np.dtype(work.dtype).newbyteorder("<")
    paths = [work.out / f"{file}{ending}" for ending in ("", INDEX, GIVEN)]
    paths = paths if work.format == "chat" else paths[:2]
    tokens, ends = 0, array("Q")
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_write(path)) for path in paths]
        for batch in batches:
            for piece in batch:
                tokens += len(piece.tokens)
                if piece.is_last:
                    ends.append(tokens)
                files[0].write(np.array(piece.tokens, dtype=dtype).tobytes())
                if piece.given is not None:
                    files[2].write(bytes(piece.given))
            report(sum(piece.is_last for piece in batch))
        files[1].write(np.array(ends, dtype="<u8").tobytes())
    kinds = ("tokens_sha256", "index_sha256", "given_sha256")
    digests = dict(zip(kinds, map(sha256, paths), strict=False))
    return ShardRecord(file=file, documents=len(ends), tokens=tokens, **digests)


def _encode_texts(pieces: Iterable[_Piece], tokenizer: Tokenizer) -> Iterator[list[_Encoded]]:
    """Yield batches of encoded pieces, with end-of-text after the last of each document."""
    for batch in _batches(pieces):
        try:
            encoded = tokenizer.encode_batch([text for _, text, _ in batch])
        except DataError:
            for place, text, _ in batch:
                with named(place):
                    tokenizer.encode(text)
            raise
        yield [
            _Encoded([*ids, tokenizer.end_id] if is_last else ids, is_last)
            for (*_, is_last), ids in zip(batch, encoded, strict=True)
        ]


def _encode_chats(
    documents: Iterable[tuple[str, str]], tokenizer: Tokenizer
) -> Iterator[list[_Encoded]]:
    for place, line in documents:
        tokens, given = encode_chat(tokenizer, parse_chat(line, place), place)
        yield [_Encoded(tokens, True, given)]


def _pieces(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[_Piece]:
    """Yield documents, given as place and text, in pieces whose encoding fits in memory."""
    longest = min(_BATCH_CHARACTERS, PIECE_CHARACTERS.value)
    for place, text in documents:
        pieces = cut(text, longest) if tokenizer.encodes_pieces else [text]
        start = 0
        for piece in pieces:
            start += len(piece)
            where = "between words" if tokenizer.encodes_pieces else "to be encoded at once"
            PIECE_CHARACTERS.require(len(piece), f"{place}, {where},", DataError)
            yield place, piece, start == len(text)


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Group pieces into batches large enough for all threads of the tokenizer."""
    batch: list[_Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece[1])
        if batch and (characters > _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES):
            yield batch
            batch, characters = [], len(piece[1])
        batch.append(piece)
    if batch:
        yield batch
