"""A journal of answers that have been paid for: one line of JSON each, on disk at once.

with open_journal(Path("judge.json.journal.jsonl")) as journal:
    if key not in journal.answers:
        journal.add(key, grades, reply)
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final, NamedTuple, cast, final

from gidd.common.files import file_kind, file_lock, fsync_directory, parse_json
from gidd.errors import ConfigError, DataError
from gidd.evaluation.judge.judge_client import Reply

ASPECTS: Final = ("clarity", "grammaticality", "factuality", "style", "creativity")
"""What is graded, App. F.1; `style` is the column "Writing style" of the paper's table."""

LOWEST_GRADE, HIGHEST_GRADE = 1, 10
_LONGEST_LINE = 1 << 23
_LOGGER = logging.getLogger(__name__)


class GradedAnswer(NamedTuple):
    """The grades of a text, and what the server says about its answer."""

    grades: dict[str, int]
    model: str
    prompt_tokens: int
    completion_tokens: int


def require_grades(record: object) -> dict[str, int]:
    """Return the five grades of a dictionary; `DataError` if one is missing or out of range."""
    if not isinstance(record, dict):
        raise DataError("the grades must be a JSON object")
    found = cast("dict[str, Any]", record)
    for aspect in ASPECTS:
        value = found.get(aspect)
        if type(value) not in (int, float) or value not in range(LOWEST_GRADE, HIGHEST_GRADE + 1):
            shown = "none" if value is None else json.dumps(value)[:40]
            raise DataError(f"the grade of {aspect} must be an integer in [1, 10], got {shown}")
    return {aspect: int(found[aspect]) for aspect in ASPECTS}


@final
class Journal:
    """Answers by key. Lines that are not valid, such as a half-written last one, are ignored."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = Lock()
        self._answers: dict[str, GradedAnswer] = {}
        self._read()

    @property
    def answers(self) -> Mapping[str, GradedAnswer]:
        """The answers, by key."""
        return self._answers

    def add(self, key: str, grades: dict[str, int], reply: Reply) -> None:
        """Append an answer; it is on disk when this returns. Threads may call it at once."""
        answer = GradedAnswer(grades, reply.model, reply.prompt_tokens, reply.completion_tokens)
        record = {"key": key, **answer._asdict(), "answer": reply.content}
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._answers[key] = answer

    def _read(self) -> None:
        self._file.seek(0)
        ignored, line = 0, b"\n"
        for line in iter(lambda: self._file.readline(_LONGEST_LINE), b""):
            try:
                key, answer = _parse(line)
                self._answers[key] = answer
            except (ValueError, TypeError, KeyError, AttributeError):
                ignored += bool(line.strip())
        if ignored:
            _LOGGER.warning(
                f"{self._file.name}: {ignored} lines are not valid answers and are ignored, as "
                "after an interruption in the middle of a line. Their texts are graded again."
            )
        if not line.endswith(b"\n"):  # the next answer starts on its own line
            self._file.write(b"\n")
            self._file.flush()


@contextmanager
def open_journal(path: Path) -> Generator[Journal]:
    """Open or create a journal; only one process may use it at a time."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} must be a regular file, got a {file_kind(path)}. Remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = ConfigError(
        f"{path} is in use by another `gidd eval judge`. Wait until it ends, or name another --out."
    )
    with file_lock(path, busy), path.open("a+b") as file:
        fsync_directory(path.parent)
        yield Journal(file)


def _parse(line: bytes) -> tuple[str, GradedAnswer]:
    record = cast("dict[str, Any]", parse_json(line, "a line"))
    if not re.fullmatch("[0-9a-f]{64}", record["key"]):
        raise ValueError("not a key")
    return record["key"], GradedAnswer(
        require_grades(record["grades"]),
        str(record["model"]),
        int(record["prompt_tokens"]),
        int(record["completion_tokens"]),
    )
