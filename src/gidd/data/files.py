"""Files that are whole or absent: written aside, forced to disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from gidd.errors import DataError

ASIDE = ".aside"
"""How the name of an unfinished file ends; whatever carries it may be deleted."""


@contextmanager
def writing(path: Path) -> Generator[BinaryIO]:
    """Open a file beside `path`; when the block ends well, force it to disk and rename it.

    Whenever the machine stops, `path` holds all of the old bytes or all of the new ones.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE}")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _force_to_disk(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _force_to_disk(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Delete the unfinished files of a run that was ended."""
    for path in folder.glob(f"**/.*{ASIDE}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, unless it already holds that text."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(data)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON, unless the file already holds that."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object; `remedy` says what to do if there is none."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. {remedy}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} must hold a JSON object. {remedy}")
    return cast("dict[str, Any]", value)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
