"""The plan of a preparation and its tasks: documents to a shard, then a record with their number.

The plan divides the bytes of the sources, which are read once, by the tasks. It depends on the
sources and settings, not on the machine; `tasks/plan.json` keeps it for resuming.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gidd.common.config.allowed import choice, require_arguments
from gidd.common.config.codec import from_plain
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
from gidd.data.corpora.documents import Documents, named
from gidd.data.manifest import DATA_MANIFEST, GIVEN, INDEX, ShardRecord
from gidd.data.processes import ReportProgress
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
"""Index of a source, and a range start .. stop of its extent."""

Part = tuple[Documents, tuple[int, ...], int, int]
"""A source, its stamp when it was planned, and a range start .. stop of its extent."""

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
    extents: tuple[int, ...]


def make_tasks(
    sizes: Sequence[int], extents: Sequence[int], tasks: int
) -> list[tuple[int, list[Range]]]:
    """Return bytes and ranges of `tasks` equal parts of all sources, without empty parts.

    What cannot be divided belongs to the part in which it ends.
    """
    ends = [0, *accumulate(sizes)]
    tasks, result = min(tasks, ends[-1]), list[tuple[int, list[Range]]]()
    for borders in pairwise(ends[-1] * index // tasks for index in range(tasks + 1)):
        ranges, size = list[Range](), 0
        for source in range(bisect_right(ends, borders[0]) - 1, bisect_left(ends, borders[1])):
            begin, length, extent = ends[source], sizes[source], extents[source]
            inside = (min(max(border - begin, 0), length) for border in borders)
            start, stop = (byte * extent // length for byte in inside)
            if start < stop:
                ranges.append((source, start, stop))
                size += (stop - start) * length // extent
        if ranges:
            result.append((size, ranges))
    return result


def held_out_by_task(counts: Sequence[int], held_out: int, order: ValidationOrder) -> list[int]:
    """Return how many of its last documents each task holds out, given the documents of all."""
    ends = [0, *accumulate(counts)]
    if order == "last":
        return [
            min(max(0, stop - max(start, ends[-1] - held_out)), stop - start)
            for start, stop in pairwise(ends)
        ]
    return [
        stop * held_out // ends[-1] - start * held_out // ends[-1] for start, stop in pairwise(ends)
    ]


def num_held_out(validation: Validation, documents: int) -> int:
    """Return the number of held-out documents: `validation`, or that fraction if below 1."""
    if validation == "auto":
        return min(max(1, documents // 10), documents - 1)
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
    is_fraction = isinstance(validation, float)
    if validation != "auto" and not 0 <= validation < (1 if is_fraction else math.inf):
        raise ConfigError(
            f"validation must be a number of documents or a fraction in [0, 1), got {validation}."
        )
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
        if min(from_plain(_Notes, known, "plan", has_kinds=False).extents, default=0) < 0:
            raise ConfigError(f"extents must not be negative, got {shorten(plan['extents'])}.")
    except ConfigError as error:
        raise DataError(f"{path} is not a valid plan: {error} {remedy}") from error
    return plan


def load_or_create_plan(
    out: Path, documents: Sequence[Documents], settings: dict[str, Any], notes: dict[str, Any]
) -> dict[str, Any]:
    """Return the plan of the run to resume, or write a new plan."""
    path = out / TASKS / PLAN
    if path.is_file():
        plan = read_plan(out)
        changed = [name for name, value in settings.items() if plan.get(name) != value]
        if not changed and len(plan["extents"]) != len(documents):
            changed = ["extents"]
        if not changed:
            return plan
        if any((out / TASKS).glob("[0-9]*.json")):
            raise DataError(
                f"{out} was started with other {' and '.join(changed)}; see {path}. "
                "Use the same sources and settings, delete the folder, or choose another --out."
            )  # without finished tasks, nothing is lost by starting again
    elif any(out.glob("*/*.ds")) or (out / DATA_MANIFEST).exists():
        raise DataError(f"{out} has shards but no {TASKS}/{PLAN}. Choose another --out folder.")
    if not any(size for _, size, *_ in settings["documents"]):
        raise no_documents(notes["sources"])
    plan = settings | notes | {"extents": [source.extent() for source in documents]}
    if not tasks_of(plan):  # raises on invalid settings before they are recorded
        raise no_documents(notes["sources"])
    write_json(path, plan, MANIFEST_BYTES)
    return plan


def no_documents(sources: Iterable[str]) -> DataError:
    """Return the error for sources without a document."""
    return DataError(f"{', '.join(sources)}: there is no document. Check the sources.")


def tasks_of(plan: dict[str, Any]) -> list[tuple[int, list[Range]]]:
    """Return the tasks of a plan: as many as given, else 8, or one per 256 MB above 2 GB."""
    num_tasks, extents = plan["tasks"], plan["extents"]
    if num_tasks is not None and num_tasks < 1:
        raise ConfigError(f"tasks must be at least 1, got {num_tasks}. Omit it to use the default.")
    stored = [size if size >= 0 else _BYTES_PER_TASK for _, size, *_ in plan["documents"]]
    sizes = [max(1, *pair) for pair in zip(stored, extents, strict=True)]
    return make_tasks(sizes, extents, num_tasks or max(8, math.ceil(sum(sizes) / _BYTES_PER_TASK)))


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
    size: int
    """Bytes of the sources that the task reads."""
    parts: tuple[Part, ...]

    def file(self, split: str) -> str:
        """Return the token file of a split, relative to the output folder."""
        return f"{split}/{self.name}.ds"

    @property
    def record(self) -> Path:
        """Path of the record, which exists if the task is finished."""
        return self.out / TASKS / f"{self.name}.json"

    def finish(self, shards: Mapping[str, ShardRecord]) -> Mapping[str, ShardRecord]:
        """Write the record of the shards, by split, and return them."""
        listed = {split: shard.to_json() for split, shard in shards.items()}
        write_json(self.record, {"plan": self.plan, "shards": listed})
        return shards


def make_work(
    out: Path, plan: dict[str, Any], documents: Sequence[Documents], tokenizer: Tokenizer
) -> tuple[Work, ...]:
    """Return the tasks of a plan, with the sources instead of their indices."""
    dtype = "uint16" if tokenizer.vocab.size <= 1 << 16 else "uint32"
    digest, form, work = plan_digest(plan), plan.get("format", "text"), list[Work]()
    stamps = [tuple(stamp) for _, *stamp in plan["documents"]]
    for index, (size, ranges) in enumerate(tasks_of(plan)):
        parts = tuple((documents[i], stamps[i], start, stop) for i, start, stop in ranges)
        task = Work(
            out=out,
            name=f"{index:05d}",
            dtype=dtype,
            plan=digest,
            format=form,
            size=size,
            parts=parts,
        )
        work.append(task)
    return tuple(work)


def write_shards(work: Work, report: ReportProgress) -> None:
    """Write the shard and then the record of a task, with the tokenizer of the output folder.

    `report` is called with 0 after every batch, and with 1 at the end.
    """
    tokenizer = tokenizer_of(work.out, work.plan)
    documents = _read(work.parts)
    if work.format == "chat":
        batches = _encode_chats(documents, tokenizer)
    else:
        batches = _encode_texts(_pieces(documents, tokenizer), tokenizer)
    first = next(batches, None)  # a range of bytes may contain no document
    shards = {}
    if first is not None:
        shards[TRAIN] = _write_shard(work, TRAIN, chain([first], batches), report)
    work.finish(shards)
    report(1)


def _read(parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    """Yield place and text of the documents of a task."""
    for documents, stamp, start, stop in parts:
        yield from documents.read_part(start, stop)
        if tuple(documents.stamp()) != stamp:
            raise DataError(
                f"{documents.name} changed after it was planned. Prepare into a new folder."
            )


def hold_out(work: Work, shard: ShardRecord, documents: int) -> Mapping[str, ShardRecord]:
    """Move the last documents of a task from its training shard to a validation shard."""
    (work.out / VALIDATION).mkdir(exist_ok=True)
    if documents == shard.documents:
        for file in shard.files(work.dtype):
            (work.out / file).rename(work.out / VALIDATION / Path(file).name)
        return work.finish({VALIDATION: replace(shard, file=work.file(VALIDATION))})
    border, end = shard.documents - documents, shard.documents
    held_out = _write_shard(work, VALIDATION, _encoded_of(work, border, end), lambda tasks: None)
    rest = _write_shard(work, TRAIN, _encoded_of(work, 0, border), lambda tasks: None)
    return work.finish({TRAIN: rest, VALIDATION: held_out})


def finished(work: Work) -> Mapping[str, ShardRecord] | None:
    """Return the shards of a task, or None if a record or shard is missing or incomplete."""
    try:
        record = read_json(work.record, "", DataError)
        shards = {
            split: from_plain(ShardRecord, shard, split, has_kinds=False)
            for split, shard in record["shards"].items()
        }
    except (AttributeError, GiddError, KeyError, TypeError):
        return None
    for split, shard in shards.items():
        sizes = {work.out / file: size for file, (size, _) in shard.files(work.dtype).items()}
        is_complete = all(p.is_file() and p.stat().st_size == sizes[p] for p in sizes)
        if not is_complete or split not in (TRAIN, VALIDATION) or shard.file != work.file(split):
            return None
    return shards if record.get("plan") == work.plan else None


@lru_cache(maxsize=1)
def tokenizer_of(out: Path, plan: str) -> Tokenizer:
    """Load the tokenizer of a folder; cached by plan, which determines the tokenizer."""
    return Tokenizer.load(out)


_Piece = tuple[str, str, bool]  # document, text, and whether it is the document's last piece


class _Encoded(NamedTuple):
    """Tokens of a document or of a piece of it."""

    tokens: Sequence[int] | np.ndarray
    is_last: bool
    given: Sequence[bool] | np.ndarray | None = None


def _encoded_of(work: Work, start: int, stop: int) -> Iterator[list[_Encoded]]:
    """Yield documents start .. stop - 1 of the training shard of a task."""
    file = work.out / work.file(TRAIN)
    tokens = np.memmap(file, np.dtype(work.dtype).newbyteorder("<"), "r")
    given = np.memmap(f"{file}{GIVEN}", np.uint8, "r") if work.format == "chat" else None
    ends = np.memmap(f"{file}{INDEX}", "<u8", "r")
    begin = int(ends[start - 1]) if start else 0
    for end in map(int, ends[start:stop]):
        yield [_Encoded(tokens[begin:end], True, None if given is None else given[begin:end])]
        begin = end


def _write_shard(
    work: Work, split: str, batches: Iterable[list[_Encoded]], report: ReportProgress
) -> ShardRecord:
    dtype, file = np.dtype(work.dtype).newbyteorder("<"), work.file(split)
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
            report(0)
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
