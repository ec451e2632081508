"""Words that a user or a project knows: one per line, # begins a comment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gidd.errors import DataError

PROJECT_FILE: Final = ".gidd-proof-words"
"""File of a project, in the current folder or a folder above it."""

_MAX_BYTES = 4 << 20


def user_file() -> Path:
    """Return the file of the user's own words."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "gidd-proof" / "words"


def word_files(folder: Path) -> Iterator[Path]:
    """Yield the files that apply to a folder: the user's and the nearest project's."""
    if user_file().is_file():
        yield user_file()
    folder = folder.resolve()
    for above in (folder, *folder.parents):
        if (above / PROJECT_FILE).is_file():
            yield above / PROJECT_FILE
            return


def read_user_words(paths: Iterable[Path]) -> set[str]:
    """Return the words of files."""
    found: set[str] = set()
    for path in paths:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"it must have at most {_MAX_BYTES:,} bytes")
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read as a list of words: {error}. Write one word per line in "
                "UTF-8."
            ) from error
        found.update(word for line in lines if (word := line.partition("#")[0].strip()))
    return found


def change_user_words(path: Path, *, add: str = "", remove: str = "") -> bool:
    """Add a word to a file or remove one; return whether the file changed."""
    words = read_user_words([path]) if path.is_file() else set[str]()
    if add:
        if add in words:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        ended = text if not text or text.endswith("\n") else text + "\n"
        path.write_text(f"{ended}{add}\n", encoding="utf-8")
        return True
    if remove not in words:
        return False
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("#")[0].strip() != remove]
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return True
