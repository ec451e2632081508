"""User files: text, JSON lines, Parquet; local or remote."""

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
from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import FIX_FILE, Documents, no_column, text_of
from gidd.errors import DataError

_JSON_LINES = tuple(f"{kind}{end}" for kind in (".jsonl", ".ndjson") for end in ("", ".gz", ".zst"))
_ENDINGS = (".txt", *_JSON_LINES, ".parquet")
_LARGEST = 1 << 30
"""Maximum bytes of a document, which must fit in memory."""


@final
@dataclass(frozen=True)
class Files(Corpus):
    """A file, or all files of a folder sorted by name; a path or a URL."""

    name: str
    description = "files, folders and URLs: .txt, .jsonl, .jsonl.gz, .jsonl.zst, .parquet"

    def documents(self) -> list[Documents]:
        """Return one document per text file, JSON line or Parquet row."""
        return find_documents(self.name)


@dataclass(frozen=True, repr=False)
class _File(Documents):
    path: str
    """A path or a URL, which may contain credentials; messages show `name`."""

    column: str = "text"
    """Field of a JSON line, or column of a table, with the text."""

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
        """Open the file, decompressed; any error of the block is raised as a `DataError`."""
        with remote.wrap_errors(self.name, FIX_FILE), self._raw(from_start) as file:
            if self.name.endswith(".gz"):
                yield GzipFile(fileobj=file)
            elif self.name.endswith(".zst"):
                arrow = optional_package("pyarrow", "data")
                yield BufferedReader(arrow.CompressedInputStream(file, "zstd"))
            else:
                yield file

    def _raw(self, from_start: bool) -> Any:
        if remote.is_url(self.path):
            return remote.open_url(self.path, from_start=from_start)
        return Path(self.path).open("rb")


@final
class _TextFile(_File):
    """A text file: one document, byte for byte."""

    def count(self) -> int:
        return 1

    def read(self, start: int, stop: int) -> Iterator[str]:
        if start < stop:
            with self._open(from_start=True) as file:
                data: bytes = file.read(_LARGEST + 1)
                _require_size(data, self.name)
                yield _decode(data, self.name, 1)


@final
class _JsonLines(_File):
    """JSON lines: one object with a text field per line; empty lines are skipped."""

    quick_count = False

    def count(self) -> int:
        return sum(1 for _ in self._lines())

    def read(self, start: int, stop: int) -> Iterator[str]:
        for number, line in islice(self._lines(), start, stop):
            place = f"{self.name}, line {number}"
            text = _decode(line, self.name, number)
            try:
                value: object = json.loads(text)
            except ValueError as error:
                raise DataError(f"{place}: not JSON ({error}). {FIX_FILE}") from error
            yield text_of(value, self.column, place)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._open(from_start=True) as file:
            lines = iter(lambda: file.readline(_LARGEST + 1), b"")
            for number, line in enumerate(lines, start=1):
                _require_size(line, f"{self.name}, line {number}")
                if line.strip():
                    yield number, line


@final
class ParquetFile(_File):
    """Parquet: one document per row, in one column."""

    def count(self) -> int:
        """Return the number of rows, from the file's footer."""
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open(from_start=False) as file, parquet.ParquetFile(file) as table:
            return table.metadata.num_rows

    def read(self, start: int, stop: int) -> Iterator[str]:
        """Yield the texts; row groups outside the range are not read."""
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
    """Return the documents of a file, or of all files of a folder sorted by name.

    `path` may be the URL of either; `*` in a URL matches any name.
    """
    if isinstance(path, str) and remote.is_url(path):
        return [reader(file) for file in remote.list_files(path, _ENDINGS)]
    path = Path(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.name.endswith(_ENDINGS)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if not files:
            raise DataError(
                f"{path} has no documents: no file name in it ends in {', '.join(_ENDINGS)}. "
                "Check the folder."
            )
        return [reader(str(file)) for file in files]
    if not path.is_file():
        raise DataError(
            f"{path} is neither a file, nor a folder, nor a corpus of `gidd data list`. "
            "Check the spelling."
        )
    return [reader(str(path))]


def reader(path: str, column: str = "text") -> Documents:
    """Return the documents of a file, whose format is given by the ending of its name."""
    name = remote.without_credentials(path)
    if name.endswith(_JSON_LINES):
        return _JsonLines(path, column)
    if name.endswith(".parquet"):
        return ParquetFile(path, column)
    if name.endswith(".txt"):
        return _TextFile(path)
    raise DataError(
        f"{name}: the name of a source must end in {', '.join(_ENDINGS)}. "
        "Rename the file, or convert it to JSON lines."
    )


def _require_size(data: bytes, place: str) -> None:
    if len(data) > _LARGEST:
        raise DataError(
            f"{place}: a document must have at most {_LARGEST:,} bytes, this one has more. "
            "Split it into several, for example as lines of a .jsonl file."
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
