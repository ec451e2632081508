"""Words that a user or a project knows: one per line, # begins a comment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gidd.cli import Limit, file_lock, read_regular, replace_file
from gidd.errors import DataError

PROJECT_FILE: Final = ".gidd-proof-words"
"""File of a project, in the current folder or a folder above it."""

_FILE_BYTES = Limit(4 << 20)
_WORD = re.compile(r"[^\s#]{1,100}")
_SECONDS = 10.0
"""Time to wait for another process that changes the words."""


def user_file() -> Path:
    """Return the file of the user's own words."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "gidd-proof" / "words"


def word_files(folder: Path) -> Iterator[Path]:
    """Yield the files that apply to a folder: the user's and the nearest project's."""
    if user_file().exists():
        yield user_file()
    folder = folder.resolve()
    for above in (folder, *folder.parents):
        if (above / PROJECT_FILE).exists():
            yield above / PROJECT_FILE
            return


def read_user_words(paths: Iterable[Path]) -> set[str]:
    """Return the words of files."""
    return {word for path in paths for word in map(_word_of, _read(path).splitlines()) if word}


def change_user_words(path: Path, *, add: str = "", remove: str = "") -> bool:
    """Add a word to a file or remove one; return whether the file changed.

    Other processes wait for the change, and a reader sees all of the old words or all of the new.
    """
    word = require_word(add or remove)
    if add:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        return False
    busy = DataError(f"{path} is locked by another process for {_SECONDS:.0f} s. Try again.")
    with file_lock(path.with_name(f".{path.name}.lock"), busy, seconds=_SECONDS):
        before = _read(path) if path.exists() else ""
        lines = before.splitlines(keepends=True)
        if (word in map(_word_of, lines)) == bool(add):
            return False
        ended = before if before.endswith("\n") or not before else before + "\n"
        after = "".join(line for line in lines if _word_of(line) != word)
        after = f"{ended}{word}\n" if add else after
        _FILE_BYTES.require(len(after.encode()), str(path), DataError)
        path.open("ab").close()  # it exists, and is not read-only
        replace_file(path, before, after)
    return True


def require_word(word: object) -> str:
    """Return a word that a file can hold, or raise `DataError`."""
    if isinstance(word, str) and _WORD.fullmatch(word) and word.isprintable():
        return word
    raise DataError(
        "a word must have 1 to 100 printable characters, without spaces and #, got "
        f"{repr(word)[:99]}."
    )


def _word_of(line: str) -> str:
    return line.partition("#")[0].strip()


def _read(path: Path) -> str:
    try:
        return read_regular(path, DataError, _FILE_BYTES, "Write one word per line.").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a list of words: {error}. Write one word per line in UTF-8."
        ) from error
