"""Journal of a correction: what an interrupted command has found, for the next run.

A journal is a file of JSON lines in a cache folder, one per finished part of the text and one per
decision of `--interactive`. Its name is a hash of the text, the model and all options. It is not
trusted: lines are bounded and checked against the text, and those from the first invalid one on
are ignored. Journals are removed when a command is finished; of others, the newest are kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast, final

from gidd.cli.messages import print_message
from gidd.common.files import file_lock, parse_json
from gidd.errors import DataError
from gidd.proofreading.edits import Alternative, JudgedText, TextEdit

if TYPE_CHECKING:
    from gidd.proofreading.noise_level import NoiseLevel
    from gidd.proofreading.parts import TextPart

_MAX_JOURNALS = 64
_MAX_DAYS = 30
"""Journals beyond these are removed."""

_MAX_LINE = 1 << 22
"""Bytes of a line: a part of 4,096 characters has far less."""

_MAX_ALTERNATIVES = 256
_MAX_TEXT = 4096
"""Characters of a replacement."""

_MAX_CALLS = 1 << 40

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
"""A journal holds words of the text."""


def journal_folder() -> Path:
    """Return the folder of the journals, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gidd" / "correct"


@final
class TextJournal:
    """What has been found about a text; new findings are appended to the file at once."""

    def __init__(self, text: str, parts: Sequence[TextPart], file: BinaryIO | None = None) -> None:
        self.noise: NoiseLevel | None = None
        self.parts: dict[int, JudgedText] = {}
        self.choices: dict[int, str | None] = {}
        """Decisions of a user: the text of a place by its start; None if it was skipped."""
        self.is_finished = False
        """Whether the text is the result of the command."""
        self._text, self._cut, self._file = text, parts, file
        if file is not None:
            self._read(file)

    @property
    def is_kept(self) -> bool:
        """Whether findings are written to a file."""
        return self._file is not None

    @property
    def num_characters(self) -> int:
        """Characters in finished parts."""
        return sum(self._cut[index].stop - self._cut[index].start for index in self.parts)

    def add_noise(self, noise: NoiseLevel) -> None:
        """Record the estimated noise level."""
        self.noise = noise
        self._append(kind="noise", **_without_windows(noise))

    def add_part(self, index: int, judged: JudgedText) -> None:
        """Record the edits of a part."""
        self.parts[index] = judged
        edits = [[edit.start, edit.old, edit.new, edit.alternatives] for edit in judged.edits]
        self._append(kind="part", index=index, calls=judged.calls, edits=edits)

    def add_choice(self, edit: TextEdit, new: str | None) -> None:
        """Record what a user wants at a place; None if it was skipped."""
        self.choices[edit.start] = new
        self._append(kind="choice", start=edit.start, new=new)

    def add_finished(self) -> None:
        """Record that the text is the result of the command."""
        self._append(kind="finished")

    def _append(self, **record: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:  # a full disk is no reason to stop
            self._file = None
            print_message(f"finished parts are not kept: {error.strerror}.")

    def _read(self, file: BinaryIO) -> None:
        """Read lines up to the first that is incomplete or invalid, and cut the file there."""
        file.seek(0)
        end = 0
        while (line := file.readline(_MAX_LINE)).endswith(b"\n"):
            try:
                self._take(cast("dict[str, Any]", parse_json(line, "a line")))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
                break
            end += len(line)
        file.truncate(end)
        file.seek(end)

    def _take(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "noise":
                self.noise = _noise(record)
            case "part":
                index = _integer(record["index"], len(self._cut) - 1)
                self.parts[index] = self._judged(self._cut[index], record)
            case "choice":
                new = record["new"]
                place = _integer(record["start"], len(self._text))
                self.choices[place] = None if new is None else _string(new)
            case "finished":
                self.is_finished = True
            case _:
                raise ValueError("unknown kind")

    def _judged(self, part: TextPart, record: Mapping[str, Any]) -> JudgedText:
        """Return the edits of a part: in order, in the part, and of its text."""
        edits: list[TextEdit] = []
        last = part.start
        for start, old, new, alternatives in record["edits"]:
            edit = TextEdit(
                _integer(start, part.stop), _string(old), _string(new), _alternatives(alternatives)
            )
            fits = last <= edit.start and edit.stop <= part.stop
            if not fits or self._text[edit.start : edit.stop] != edit.old:
                raise ValueError("not an edit of this text")
            edits.append(edit)
            last = edit.stop
        return JudgedText(edits, _integer(record["calls"], _MAX_CALLS))


@contextmanager
def open_text_journal(path: Path, text: str, parts: Sequence[TextPart]) -> Generator[TextJournal]:
    """Yield the journal of a text.

    It is not kept if the folder cannot be written or another process corrects the same text.
    """
    with ExitStack() as stack:
        file = None
        try:
            path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            _remove_old(path.parent)
            path.touch(_PRIVATE_FILE)
            stack.enter_context(file_lock(path, DataError("another process corrects this text")))
            file = stack.enter_context(path.open("a+b"))
        except (OSError, DataError) as error:
            print_message(f"finished parts are not kept for a later run: {error}.")
        yield TextJournal(text, parts, file)


def _remove_old(folder: Path) -> None:
    oldest = time.time() - _MAX_DAYS * 24 * 3600
    found = [(path.lstat().st_mtime, path) for path in folder.glob("*.jsonl")]
    for place, (changed, path) in enumerate(sorted(found, reverse=True)):
        if place >= _MAX_JOURNALS or changed < oldest:
            with suppress(OSError):
                path.unlink()


def _without_windows(noise: NoiseLevel) -> dict[str, Any]:
    return {name: value for name, value in noise._asdict().items() if name != "windows"}


def _noise(record: Mapping[str, Any]) -> NoiseLevel:
    from gidd.proofreading.noise_level import NoiseLevel

    error_rate, low, high, at = (
        _probability(record[name]) for name in ("error_rate", "low", "high", "time")
    )
    return NoiseLevel(error_rate, low, high, at, calls=_integer(record["calls"], _MAX_CALLS))


def _alternatives(rows: Sequence[Sequence[Any]]) -> tuple[Alternative, ...]:
    if len(rows) > _MAX_ALTERNATIVES:
        raise ValueError("too many alternatives")
    return tuple(Alternative(_string(text), _probability(p)) for text, p in rows)


def _integer(value: object, largest: int) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError("not a valid number")
    return value


def _probability(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= cast("float", value) <= 1:
        raise ValueError("not a probability")
    return float(cast("float", value))


def _string(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError("not a short text")
    return value
