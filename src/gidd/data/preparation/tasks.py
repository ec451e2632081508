"""One task of a preparation: tokenize documents into one shard per split, then write a record."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gidd.common.config.codec import from_plain
from gidd.common.files import PIECE_CHARACTERS, atomic_write, read_json, write_json
from gidd.data.chat import encode_chat, parse_chat
from gidd.data.corpora.documents import Documents, read_ranges
from gidd.data.manifest import GIVEN, INDEX, ShardRecord
from gidd.data.preparation.work_plan import TASKS, DataFormat, plan_digest, tasks_of
from gidd.data.processes import ReportProgress
from gidd.data.tokenizers import Tokenizer
from gidd.data.tokenizers.encoding import cut
from gidd.errors import DataError, GiddError

_BATCH_CHARACTERS = 1 << 21
_BATCH_PIECES = 4096


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
    for number, task in enumerate(tasks_of(plan)):
        parts = {
            split: [(documents[source], start, stop) for source, start, stop in ranges]
            for split, ranges in task.items()
        }
        name, form = f"{number:05d}", plan.get("format", "text")
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
    files = {shard.file for shard in shards.values()}
    if record.get("plan") != work.plan or files != {work.file(split) for split in work.parts}:
        return None
    for split, shard in shards.items():
        item_size = np.dtype(work.dtype).itemsize
        sizes = {shard.file: shard.tokens * item_size, shard.file + INDEX: shard.documents * 8}
        if shard.given_sha256 is not None:
            sizes[shard.file + GIVEN] = shard.tokens
        is_complete = all(
            (work.out / file).is_file() and (work.out / file).stat().st_size == size
            for file, size in sizes.items()
        )
        if not is_complete or shard.documents != work.documents(split):
            return None
    return shards


@lru_cache(maxsize=1)
def tokenizer_of(out: Path, plan: str) -> Tokenizer:
    """Load the tokenizer of a folder; cached by plan, which determines the tokenizer."""
    return Tokenizer.load(out)


_Piece = tuple[str, bool]
"""A text, and whether it is the last piece of its document."""


class _Encoded(NamedTuple):
    """Tokens of a document or of a piece of it."""

    tokens: list[int]
    is_last: bool
    given: list[bool] | None = None


def _write_shard(
    work: Work, file: str, batches: Iterable[list[_Encoded]], report: ReportProgress
) -> ShardRecord:
    dtype = np.dtype(work.dtype).newbyteorder("<")
    names = [file, file + INDEX] + [file + GIVEN] * (work.format == "chat")
    sums, tokens, ends = [hashlib.sha256() for _ in names], 0, array("Q")
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_write(work.out / name)) for name in names]

        def write(number: int, values: Any, dtype: Any) -> None:
            data = np.array(values, dtype=dtype).tobytes()
            sums[number].update(data)
            files[number].write(data)

        for batch in batches:
            for piece in batch:
                tokens += len(piece.tokens)
                if piece.is_last:
                    ends.append(tokens)
                write(0, piece.tokens, dtype)
                if piece.given is not None:
                    write(2, piece.given, np.uint8)
            report(sum(piece.is_last for piece in batch))
        write(1, ends, "<u8")
    digests = [checksum.hexdigest() for checksum in sums]
    return ShardRecord(
        file=file,
        documents=len(ends),
        tokens=tokens,
        tokens_sha256=digests[0],
        index_sha256=digests[1],
        given_sha256=digests[2] if len(digests) > 2 else None,
    )


def _encode_texts(pieces: Iterable[_Piece], tokenizer: Tokenizer) -> Iterator[list[_Encoded]]:
    """Yield batches of encoded pieces, with end-of-text after the last of each document."""
    for batch in _batches(pieces):
        encoded = tokenizer.encode_batch([text for text, _ in batch])
        yield [
            _Encoded([*ids, tokenizer.end_id] if is_last else ids, is_last)
            for (_, is_last), ids in zip(batch, encoded, strict=True)
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
            yield piece, start == len(text)


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Group pieces into batches large enough for all threads of the tokenizer."""
    batch: list[_Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece[0])
        if batch and (characters > _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES):
            yield batch
            batch, characters = [], len(piece[0])
        batch.append(piece)
    if batch:
        yield batch
