"""Atomic writes: a temporary file, fsync, then rename. A reader never sees a partial file."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from gidd.errors import ConfigError, GiddError

TEMPORARY = ".tmp"
"""Suffix of temporary files; a file with this suffix may be deleted."""


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """Yield a temporary path in the folder of `path`, renamed to `path` if the block succeeds.

    After a crash at any time, `path` holds all of the old bytes or all of the new ones. The name
    is random, so that two machines that share a folder do not write to the same file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
    try:
        yield temporary
        _fsync(temporary)
        temporary.replace(path)
        fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """Open a binary file that replaces `path` if the block succeeds."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


def fsync_directory(folder: Path) -> None:
    """Flush the entries of a folder (names of its files) to disk."""
    _fsync(folder)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, busy: GiddError) -> Generator[None]:
    """Hold an exclusive lock on a file while the block runs.

    The operating system releases the lock when the process ends. It needs a file open for writing,
    since network file systems cannot lock a folder. The file is not deleted afterwards: otherwise
    two processes could each lock a different file of that name. `path` is created if missing, in an
    existing folder; `busy` is raised if another process holds the lock.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no fcntl: no lock
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        except OSError:  # a file system without locks: no lock
            pass
        yield


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of an interrupted run, in all subfolders."""
    for path in folder.glob(f"**/.*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, unless it already holds that text."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically, unless the file already holds it."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: only finite numbers, strings, lists and dictionaries can be saved as JSON "
            f"({error}). Convert the other values."
        ) from error
    write_text(path, text + "\n")


def read_json(path: Path, remedy: str, error: type[GiddError]) -> dict[str, Any]:
    """Read a JSON object, or raise `error` with a message that ends with `remedy`: what to do."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as reason:
        raise error(f"{path} cannot be read as JSON: {reason}. {remedy}") from reason
    if not isinstance(value, dict):
        raise error(f"{path} must hold a JSON object. {remedy}")
    return cast("dict[str, Any]", value)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, reading it in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
