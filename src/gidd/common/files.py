"""Files that are whole or absent: written aside, forced to disk, then renamed."""

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
"""How the name of an unfinished file ends; whatever carries it may be deleted."""


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A name beside `path` to write to; when the block ends well, it becomes `path`.

    Whenever the machine stops, `path` holds all of the old bytes or all of the new ones. The name
    is drawn at random, so that two machines that share a folder do not write to one file.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
    try:
        yield beside
        _force_to_disk(beside)
        beside.replace(path)
        fsync_directory(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """Open a file for bytes that is `path` once the block has ended well."""
    with atomic_path(path) as beside, beside.open("wb") as file:
        yield file


def fsync_directory(folder: Path) -> None:
    """Force to disk which files a folder has, and under which names."""
    _force_to_disk(folder)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, busy: GiddError) -> Generator[None]:
    """Until the block ends, no other process gets past here with the same file.

    The lock is the system's and ends with the process. It is on a file that is open for writing:
    network file systems cannot lock a folder. The file stays: were it deleted, two processes could
    hold one each.

    Args:
        path: The file; made if there is none, in a folder that exists.
        busy: What to raise if another process is in such a block.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows, where two runs are on their own
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        except OSError:  # nor on a file system without locks
            pass
        yield


def remove_leftovers(folder: Path) -> None:
    """Delete the unfinished files of a run that was ended."""
    for path in folder.glob(f"**/.*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, unless it already holds that text."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON, unless the file already holds that."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: only numbers, strings, lists and dictionaries can be saved, and no NaN or "
            f"infinity ({error}). Convert the values to plain ones."
        ) from error
    write_text(path, text + "\n")


def read_json(path: Path, remedy: str, error: type[GiddError]) -> dict[str, Any]:
    """A JSON object.

    Args:
        path: The file.
        remedy: What to do if there is no object in it.
        error: What to raise then.
    """
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as reason:
        raise error(f"{path} cannot be read as JSON: {reason}. {remedy}") from reason
    if not isinstance(value, dict):
        raise error(f"{path} must hold a JSON object. {remedy}")
    return cast("dict[str, Any]", value)


def sha256(path: Path) -> str:
    """SHA-256 of a file of any size, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
