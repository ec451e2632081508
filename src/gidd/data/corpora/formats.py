"""Files that hold documents: text, JSON lines, Parquet; on disk or behind a URL."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, final

from gidd.common.optional import optional_package
from gidd.data.corpora import remote
from gidd.data.corpora.documents import MEND, Documents, no_column, text_of
from gidd.data.corpora.zstd import ZstdReader
from gidd.errors import DataError, GiddError

_JSON_LINES = tuple(f"{kind}{end}" for kind in (".jsonl", ".ndjson") for end in ("", ".gz", ".zst"))
_ENDINGS = (".txt", *_JSON_LINES, ".parquet")
_LARGEST = 1 << 30
"""Bytes of a document at most; it is read as a whole."""


@dataclass(frozen=True, repr=False)
class _File(Documents):
    path: str
    """A path or a URL, which may hold a password: messages show `name`."""

    column: str = "text"
    """Field of a line or column of a table that holds the text."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def name(self) -> str:
        return remote.without_credentials(self.path)

    def stamp(self) -> list[int]:
        if remote.is_url(self.path):
            return remote.stamp(self.path)
        status = Path(self.path).stat()
        return [status.st_size, status.st_mtime_ns]

    @contextmanager
    def _open(self, *, from_start: bool) -> Generator[Any]:
        """The file's bytes, decompressed; whatever goes wrong with them is a DataError."""
        try:
            with self._raw(from_start) as file:
                if self.name.endswith(".gz"):
                    yield GzipFile(fileobj=file)
                elif self.name.endswith(".zst"):
                    yield BufferedReader(ZstdReader(file))
                else:
                    yield file
        except GiddError:
            raise
        except Exception as error:  # each compression has errors of its own
            kind = type(error).__name__
            raise DataError(f"{self.name} cannot be read: {kind} {error}. {MEND}") from error

    def _raw(self, from_start: bool) -> Any:
        if remote.is_url(self.path):
            return remote.open_url(self.path, from_start=from_start)
        return Path(self.path).open("rb")


@final
class TextFile(_File):
    """One document: the whole file, byte for byte."""

    def count(self) -> int:
        """One."""
        return 1

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The text."""
        if start < stop:
            with self._open(from_start=True) as file:
                data: bytes = file.read(_LARGEST + 1)
                _require_size(data, self.name)
                yield _decode(data, self.name, 1)


@final
class JsonLines(_File):
    """One document per line: an object with a field "text"; empty lines are passed over."""

    quick_count = False

    def count(self) -> int:
        """Number of lines that are not empty."""
        return sum(1 for _ in self._lines())

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts."""
        for number, line in islice(self._lines(), start, stop):
            place = f"{self.name}, line {number}"
            text = _decode(line, self.name, number)
            try:
                value: object = json.loads(text)
            except ValueError as error:
                raise DataError(f"{place}: not JSON ({error}). {MEND}") from error
            yield text_of(value, self.column, place)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._open(from_start=True) as file:
            number = 0
            while line := file.readline(_LARGEST + 1):
                number += 1
                _require_size(line, f"{self.name}, line {number}")
                if line.strip():
                    yield number, line


@final
class ParquetFile(_File):
    """One document per row, in the column "text"."""

    def count(self) -> int:
        """Number of rows, from the file's footer."""
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open(from_start=False) as file, parquet.ParquetFile(file) as table:
            return table.metadata.num_rows

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts; row groups outside the range are not read."""
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open(from_start=False) as file, parquet.ParquetFile(file) as table:
            if self.column not in table.schema_arrow.names:
                raise no_column(self.name, self.column, table.schema_arrow.names)
            row = 0
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if row < stop and row + rows > start:
                    texts = table.read_row_group(group, [self.column]).column(self.column)
                    for number in range(max(row, start), min(row + rows, stop)):
                        text = texts[number - row].as_py()
                        place = f"{self.name}, row {number + 1}"
                        yield text_of({self.column: text}, self.column, place)
                row += rows


def find_documents(path: str | Path) -> list[Documents]:
    """The documents of a file, or of all files below a folder in the order of their names.

    Args:
        path: A file, a folder, or the URL of either; `*` in a URL stands for any name.
    """
    if isinstance(path, str) and remote.is_url(path):
        return [reader(file) for file in remote.list_files(path, _ENDINGS)]
    path = Path(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.name.endswith(_ENDINGS)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if not files:
            raise DataError(
                f"{path} holds no document: there is no file below it that ends in "
                f"{', '.join(_ENDINGS)}. Check the folder."
            )
        return [reader(str(file)) for file in files]
    if not path.is_file():
        raise DataError(
            f"{path} is neither a file, nor a folder, nor a corpus of `gidd data list`. "
            "Check the spelling."
        )
    return [reader(str(path))]


def reader(path: str, column: str = "text") -> Documents:
    """The documents of one file, by the ending of its name; texts are in the field `column`."""
    name = remote.without_credentials(path)
    if name.endswith(_JSON_LINES):
        return JsonLines(path, column)
    if name.endswith(".parquet"):
        return ParquetFile(path, column)
    if name.endswith(".txt"):
        return TextFile(path)
    raise DataError(
        f"{name}: the name of a source must end in {', '.join(_ENDINGS)}. "
        "Rename the file, or convert it to JSON lines."
    )


def _require_size(data: bytes, place: str) -> None:
    if len(data) > _LARGEST:
        raise DataError(
            f"{place}: a document must have at most {_LARGEST:,} bytes, this one has more. "
            "Cut it into several, as the lines of a .jsonl file."
        )


def _decode(data: bytes, path: str, line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}, line {line}: not UTF-8 ({error.reason}, byte {data[error.start]:#04x}). "
            "Convert the file to UTF-8 or leave it out."
        ) from error
