"""Files: atomic writes, and bounded reads of files that are not trusted.

Writes go to a temporary file, fsync, then rename: a reader never sees a partial file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import time
import uuid
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from gidd.common.terminal import shorten
from gidd.errors import ConfigError, GiddError


@dataclass(frozen=True)
class Limit:
    """The largest accepted value of a size."""

    default: int
    unit: str = "bytes"
    variable: str = ""
    """Environment variable that changes it, if there is one."""

    @property
    def value(self) -> int:
        """The value of the environment variable, or the default."""
        text = os.environ.get(self.variable, "") if self.variable else ""
        if not text:
            return self.default
        if not re.fullmatch("[1-9][0-9]{0,17}", text):
            raise ConfigError(
                f"the environment variable {self.variable} must be a number of {self.unit} in "
                f"[1, 10**18), got {text[:40]!r}. Its default is {self.default}."
            )
        return int(text)

    def require(self, amount: int, name: str, error: type[GiddError]) -> None:
        """Raise `error` if an amount exceeds the limit; `name` is what has that amount."""
        if amount > self.value:
            fix = f" If you trust it, raise the limit: {self.variable}={amount}."
            raise error(
                f"{name} must have at most {self.value:,} {self.unit}, got {amount:,}."
                + (fix if self.variable else "")
            )


DOCUMENT_BYTES = Limit(1 << 25, variable="GIDD_MAX_DOCUMENT_BYTES")
"""Of one document, or of one line of JSON."""

PIECE_CHARACTERS = Limit(1 << 21, "characters", "GIDD_MAX_PIECE_CHARACTERS")
"""Of text that is encoded at once: it takes 110 to 300 bytes of memory for each."""

CONTEXT_TOKENS = Limit(1 << 17, "tokens", "GIDD_MAX_CONTEXT_TOKENS")
"""Of a model's longest sequence, which no tensor of the file shows."""

RECORD_BYTES = Limit(1 << 24)  # of a JSON record: gidd.json, config.json, ...
MANIFEST_BYTES = Limit(1 << 28)
"""Of a JSON file with an entry per file, tensor or document: manifests and results."""

TOKENIZER_BYTES = Limit(1 << 26)  # of tokenizer.json
YAML_BYTES = Limit(1 << 17)  # of run.yaml: the parser takes seconds for this many
JSON_VALUES = Limit(5_000_000, "values")  # of any JSON file: each takes about 100 bytes of memory
MAX_DEPTH = 64  # nesting of JSON and YAML; records of this library have at most 6 levels
TEMPORARY = ".tmp"  # suffix of temporary files; a file with this suffix may be deleted
_KINDS = {"d": "folder", "p": "named pipe", "s": "socket", "c": "character device"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write to a full disk, which do not name the file."""


@contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Generator[Path]:
    """Yield a temporary file in the folder of `path`, renamed to `path` if the block succeeds.

    After a crash at any time, `path` holds all of the old bytes or all of the new ones. The file
    has a random name, because machines share folders, and `mode` minus the umask; it is locked.
    """
    try:
        temporary, file = _create_temporary(path, mode)
        with closing(file):
            try:
                yield temporary
                fsync(temporary)
                temporary.replace(path)
                fsync(path.parent)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = str(path)
        raise


def _create_temporary(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a temporary file, locked while it is open if there are locks; otherwise closed."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
        try:
            if not _lock(file):
                file.close()  # Windows cannot rename an open file
                return temporary, file
            if temporary.exists():
                return temporary, file
        except BlockingIOError:
            pass
        file.close()  # `remove_dead_temporaries` found it before it was locked


@contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """Open a binary file that replaces `path` if the block succeeds."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


def fsync(path: Path) -> None:
    """Flush a file, or the names of the files of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, busy: GiddError, *, seconds: float = 0.0) -> Generator[None]:
    """Lock a file, which stays, while the block runs.

    Raises `busy` if another process still has the lock after some seconds.
    """
    end = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                _lock(file)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise busy from error
                time.sleep(0.01)
        yield


def _lock(file: IO[Any]) -> bool:
    """Lock a file until it is closed; False: there are no locks. Raises if it is locked already."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of an interrupted run, in all subfolders."""
    for path in folder.glob(f"**/.*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def remove_dead_temporaries(path: Path) -> None:
    """Delete the temporary files of `path` of killed processes: those that none has locked."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}{re.escape(TEMPORARY)}")
    with os.scandir(path.parent) as entries:
        regular = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    for temporary in map(path.with_name, filter(name.fullmatch, regular)):
        # locked by its process, already deleted, or owned by somebody else
        with suppress(OSError), temporary.open("r+b") as file:
            if _lock(file):
                temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, unless it already holds that text."""
    data = text.encode()
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)


def write_json(path: Path, value: object, limit: Limit = RECORD_BYTES) -> None:
    """Write JSON atomically, unless the file holds it; raise if `read_json` could not read it."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        data = text.encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: a value cannot be saved as JSON ({error}).") from error
    limit.require(len(data), str(path), ConfigError)
    JSON_VALUES.require(_most_values(data), str(path), ConfigError)
    write_text(path, text)


def read_json(
    path: Path, remedy: str, error: type[GiddError], limit: Limit = RECORD_BYTES
) -> dict[str, Any]:
    """Read a JSON object that is not trusted; messages of `error` end with `remedy`: what to do."""
    try:
        value = parse_json(read_regular(path, error, limit), str(path))
        if not isinstance(value, dict):
            raise ValueError("it must be an object")
    except GiddError:
        raise
    except (OSError, ValueError) as reason:
        raise error(f"{path} cannot be read as JSON: {reason}. {remedy}") from reason
    return cast("dict[str, Any]", value)


def read_regular(
    path: Path, error: type[GiddError], limit: Limit | None, remedy: str = "Replace it."
) -> bytes:
    """Return the bytes of a regular file of limited size; never wait for a pipe or a device."""
    if path.exists() and not path.is_file():
        raise error(f"{path} must be a regular file, got a {file_kind(path)}. {remedy}")
    if limit is None:
        return path.read_bytes()
    limit.require(path.stat().st_size, str(path), error)
    with path.open("rb") as file:
        data = file.read(limit.value + 1)  # the file may have grown, or claim to be empty (/proc)
    limit.require(len(data), str(path), error)
    return data


def file_kind(path: Path) -> str:
    """Return what a path is, in words: folder, named pipe, device, ..."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "broken symbolic link" if path.is_symlink() else error.strerror or "missing file"
    return _KINDS.get(stat.filemode(mode)[0], "special file")


def _most_values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_json(data: bytes, name: str) -> object:
    """Parse JSON with a limited number of values and limited nesting, or raise `ValueError`."""
    JSON_VALUES.require(_most_values(data), name, ConfigError)
    try:
        value: object = json.loads(data, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        inside = chain.from_iterable(x.values() if type(x) is dict else x for x in level)
        level = [x for x in inside if type(x) is list or type(x) is dict]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a repeated key: what has been checked would not be what another parser reads."""
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"it has the key {shorten(counts.most_common(1)[0][0])} more than once")
    return value


@contextmanager
def explain_damage(name: str, remedy: str, error: type[GiddError]) -> Generator[None]:
    """Raise `error` for any exception of the block, because a damaged file can cause any.

    Compiled libraries also raise subclasses of `BaseException` (a panic in Rust). As a decorator,
    it explains the exceptions of a function.
    """
    try:
        yield
    except (GiddError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:
        shown = " ".join(str(reason).split())[:300]
        raise error(
            f"{name} is damaged or invalid: {type(reason).__name__}: {shown}. {remedy}"
        ) from reason


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, reading it in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
