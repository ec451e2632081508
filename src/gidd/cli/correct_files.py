"""Texts that `gidd correct` reads, and the files that it replaces."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gidd.cli.messages import print_message
from gidd.cli.output import decode_utf8
from gidd.common.files import atomic_path, remove_dead_temporaries
from gidd.errors import ConfigError, DataError

SUFFIXES = (".txt", ".md")
"""Files of a folder that are corrected."""

_MODEL_RECORD = "gidd.json"
"""File that every folder of a model has; importing its name would import torch."""

_ABOUT_CONTENT = ("security.capability", "security.evm", "security.ima")
"""Extended attributes that grant rights to a program or sign its bytes: not for new content."""


class TextSource(NamedTuple):
    """A text to correct: a file, or a text that was given."""

    name: str
    path: Path | None
    given: str | None
    num_characters: int

    def read(self) -> str:
        """Return the text; a file is read when its turn comes, so memory holds one at a time."""
        return self.given if self.path is None else _read_file(self.path)  # pyright: ignore[reportReturnType]


def find_sources(files: Sequence[str], text: str | None) -> list[TextSource]:
    """Return the texts of --text, files, folders and glob patterns, each file once.

    All are read once, so that a file that is not text is reported before any work is done.
    """
    if bool(files) == (text is not None):
        raise ConfigError(
            "give either FILE (- for standard input) or --text TEXT. "
            "Example: gidd correct letter.txt"
        )
    if text is not None:
        return [TextSource("the text", None, text, len(text))]
    if files.count("-") > 1:
        raise ConfigError("FILE must be - at most once: standard input is read once.")
    by_file: dict[Path | None, TextSource] = {}
    for path in (path for name in files for path in _expand(name)):
        if path is None:
            given = decode_utf8(sys.stdin.buffer.read(), "standard input")
            by_file[None] = TextSource("standard input", None, given, len(given))
        elif (resolved := path.resolve()) not in by_file:
            by_file[resolved] = TextSource(str(path), path, None, len(_read_file(path)))
    sources = list(by_file.values())
    found = sources if len(sources) == 1 else list(_without_empty(sources))
    if not found:
        raise DataError(f"{' '.join(files)}: all files are empty. Name others.")
    return found


def _without_empty(sources: Iterable[TextSource]) -> Iterator[TextSource]:
    for source in sources:
        if source.num_characters:
            yield source
        else:
            print_message(f"{source.name} is empty: skipped.")


def _expand(name: str) -> Iterator[Path | None]:
    """Yield the files that an argument names, in order; None is standard input."""
    path = Path(name)
    if name == "-":
        yield None
    elif path.is_dir():
        yield from _files_in(path)
    elif path.exists() or not glob.has_magic(name):
        yield path
    else:
        found = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
        if not found:
            raise DataError(f"no file matches {name}. Check the pattern.")
        for match in found:
            yield from _files_in(match) if match.is_dir() else (match,)


def _files_in(folder: Path) -> list[Path]:
    """Return the text files of a folder and its subfolders, sorted; hidden ones are left out."""
    if (folder / _MODEL_RECORD).is_file():
        raise ConfigError(
            f"{folder} is the folder of a model, not a text. Name the model with --model: "
            f"gidd correct FILE --model {folder}"
        )
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        shown = (Path(parent, name) for name in sorted(names) if not name.startswith("."))
        found += [path for path in shown if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise DataError(f"{folder} has no files {' or '.join(SUFFIXES)}. Name files instead.")
    return sorted(found)


def _read_file(path: Path) -> str:
    try:
        return decode_utf8(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error


def replace_file(path: Path, before: str, after: str) -> None:
    """Write a file atomically if it is unchanged; keep its mode, owner and extended attributes.

    What cannot be kept is said in a message.
    """
    remove_dead_temporaries(path)
    if path.read_bytes() != before.encode():
        raise DataError(f"{path} changed while it was being corrected: not written. Run it again.")
    if after == before:
        return
    found = path.stat()
    with atomic_path(path, mode=0o600) as temporary:  # private until its permissions are set
        temporary.write_bytes(after.encode())
        lost = [*_copy_owner(found, temporary), *_copy_attributes(path, temporary)]
        temporary.chmod(found.st_mode & 0o777)  # without setuid and setgid
    if lost:
        print_message(f"{path}: the new file does not have these of the old one: {', '.join(lost)}")
    if found.st_nlink > 1:
        print_message(
            f"{path}: {found.st_nlink - 1} other names (hard links) of this file keep the old text."
        )


def _copy_owner(found: os.stat_result, target: Path) -> Iterator[str]:
    """Set group and owner of a file; yield what could not be set."""
    for name, owner, group in (("group", -1, found.st_gid), ("owner", found.st_uid, -1)):
        try:
            os.chown(target, owner, group)
        except PermissionError:
            yield name


def _copy_attributes(source: Path, target: Path) -> Iterator[str]:
    """Copy the extended attributes of a file; yield the names of those that could not be copied."""
    if sys.platform != "linux":
        return
    try:
        names = os.listxattr(source)
    except OSError:  # the file system has none
        return
    for name in names:
        with suppress(OSError):
            if name not in _ABOUT_CONTENT:
                os.setxattr(target, name, os.getxattr(source, name))
                continue
        yield name
