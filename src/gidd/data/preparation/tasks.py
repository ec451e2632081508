"""One task of a preparation: tokenize documents into one shard per split, then write a record."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from gidd.common.files import atomic_write, read_json, write_json
from gidd.common.limits import PIECE_CHARACTERS
from gidd.data.corpora.documents import Documents, read_ranges
from gidd.data.manifest import INDEX, ShardRecord
from gidd.data.preparation.work_plan import TASKS, plan_digest, tasks_of
from gidd.data.processes import ReportProgress
from gidd.data.tokenizers import Tokenizer
from gidd.data.tokenizers.encoding import cut
from gidd.errors import DataError, GiddError

_BATCH_CHARACTERS = 1 << 21
_BATCH_PIECES = 4096


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """A task with everything a worker process needs."""

    out: Path
    name: str
    """Name of the shards and of the record."""

    dtype: str
    plan: str
    """Digest of the plan that the task belongs to."""

    parts: dict[str, list[tuple[Documents, int, int]]]
    """By split: sources and ranges start .. stop of their documents."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(self.documents_of(split) for split in self.parts)

    def documents_of(self, split: str) -> int:
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
        work.append(Work(out=out, name=f"{number:05d}", dtype=dtype, plan=digest, parts=parts))
    return tuple(work)


def write_shards(work: Work, report: ReportProgress) -> None:
    """Write the shards and then the record of a task, with the tokenizer of the output folder."""
    tokenizer = tokenizer_of(work.out, work.plan)
    shards: dict[str, Any] = {}
    for split, parts in work.parts.items():
        pieces = _pieces(read_ranges(parts), tokenizer)
        shards[split] = asdict(_write_shard(work, work.file(split), pieces, tokenizer, report))
    write_json(work.record, {"plan": work.plan, "shards": shards})


def finished(work: Work) -> dict[str, ShardRecord] | None:
    """Return the shards of a task, or None if a record or shard is missing or incomplete."""
    try:
        record = read_json(work.record, "", DataError)
        records: dict[str, Any] = record["shards"]
        shards = {split: ShardRecord.parse(records[split], split, split) for split in work.parts}
    except (GiddError, KeyError, TypeError):
        return None
    files = {shard.file for shard in shards.values()}
    if record.get("plan") != work.plan or files != {work.file(split) for split in work.parts}:
        return None
    for split, shard in shards.items():
        item_size = np.dtype(work.dtype).itemsize
        sizes = {shard.file: shard.tokens * item_size, shard.file + INDEX: shard.documents * 8}
        is_complete = all(
            (work.out / file).is_file() and (work.out / file).stat().st_size == size
            for file, size in sizes.items()
        )
        if not is_complete or shard.documents != work.documents_of(split):
            return None
    return shards


@lru_cache(maxsize=1)
def tokenizer_of(out: Path, plan: str) -> Tokenizer:
    """Load the tokenizer of a folder; cached by plan, which determines the tokenizer."""
    return Tokenizer.load(out)


class _Piece(NamedTuple):
    text: str
    is_last: bool
    """Whether it is the last piece of its document."""


def _write_shard(
    work: Work, file: str, pieces: Iterable[_Piece], tokenizer: Tokenizer, report: ReportProgress
) -> ShardRecord:
    dtype = np.dtype(work.dtype).newbyteorder("<")
    path, index_path = work.out / file, work.out / (file + INDEX)
    checksum, tokens, ends = hashlib.sha256(), 0, array("Q")
    with atomic_write(path) as token_file, atomic_write(index_path) as index_file:
        for batch in _batches(pieces):
            before = tokens
            encoded = tokenizer.encode_batch([piece.text for piece in batch])
            for piece, ids in zip(batch, encoded, strict=True):
                if piece.is_last:
                    ids.append(tokenizer.end_id)
                tokens += len(ids)
                if piece.is_last:
                    ends.append(tokens)
                data = np.array(ids, dtype=dtype).tobytes()
                checksum.update(data)
                token_file.write(data)
            report(sum(piece.is_last for piece in batch), tokens - before)
        index = np.array(ends, dtype="<u8").tobytes()
        index_file.write(index)
    return ShardRecord(
        file=file,
        documents=len(ends),
        tokens=tokens,
        tokens_sha256=checksum.hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
    )


def _pieces(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[_Piece]:
    """Yield documents, given as place and text, in pieces whose encoding fits in memory."""
    longest = min(_BATCH_CHARACTERS, PIECE_CHARACTERS.value)
    for place, text in documents:
        pieces = cut(text, longest) if tokenizer.encodes_pieces else [text]
        start = 0
        for piece in pieces:
            _require_piece_size(len(piece), place, tokenizer.encodes_pieces)
            start += len(piece)
            yield _Piece(piece, is_last=start == len(text))


def _require_piece_size(num_characters: int, place: str, can_be_cut: bool) -> None:
    """Raise if too long a text would have to be encoded at once."""
    if num_characters > PIECE_CHARACTERS.value:
        where = "between spaces or line breaks that follow a letter or digit" if can_be_cut else ""
        reason = "" if can_be_cut else " with this tokenizer, which must see a whole document"
        raise DataError(
            f"{place} must have at most {PIECE_CHARACTERS.value:,} characters {where}".rstrip()
            + f"{reason}, got {num_characters:,}. Split it into several documents, or raise the "
            f"limit: {PIECE_CHARACTERS.variable}={num_characters} takes up to "
            f"{num_characters * 300 / 2**30:.1f} GiB of memory."
        )


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Group pieces into batches large enough for all threads of the tokenizer."""
    batch: list[_Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece.text)
        if batch and (characters > _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES):
            yield batch
            batch, characters = [], len(piece.text)
        batch.append(piece)
    if batch:
        yield batch
