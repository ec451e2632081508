"""User files: text, JSON lines, Parquet; local or remote."""

from __future__ import annotations

import json
import os
import sys
from bz2 import BZ2File
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any

from gidd.common.files import DOCUMENT_BYTES, file_kind
from gidd.common.optional import optional_package
from gidd.common.urls import is_url, without_credentials
from gidd.data.corpora import remote
from gidd.data.corpora.documents import (
    FIX_FILE,
    Corpus,
    Documents,
    no_column,
    require_document_size,
    text_of,
)
from gidd.errors import DataError

_COMPRESSED = (".gz", ".bz2", ".zst")
_JSON_LINES = tuple(f"{kind}{end}" for kind in (".jsonl", ".ndjson") for end in ("", *_COMPRESSED))
_ENDINGS = (".txt", *_JSON_LINES, ".parquet")
_TEXT_TYPES = ("string", "large_string", "string_view")
_BATCH_BYTES, _BATCH_ROWS, _BLOCK = 1 << 24, 1024, 1 << 16
_ROW_BYTES = 8  # what a document adds to a shard's index, whatever its length
_EXPANSION, _SMALL = 100, 8 << 20
"""A Parquet file may expand to 100 times its size, and to 8 MiB in any case."""


@dataclass(frozen=True, repr=False)
class Files(Corpus):
    """A file, or all files of a folder sorted by name; a path or a URL."""

    name: str
    description = "files, folders and URLs: .txt, .jsonl, .jsonl.gz, .bz2 or .zst, .parquet"

    def __repr__(self) -> str:
        return f"Files({without_credentials(self.name)})"

    def documents(self) -> list[Documents]:
        """Return one document per text file, JSON line or Parquet row."""
        return find_documents(self.name)


@dataclass(frozen=True, repr=False)
class _File(Documents):
    path: str
    """A path or a URL, which may contain credentials; messages show `name`."""
    column: str = "text"
    """Field of a JSON line, or column of a table, with the text; "": the line is the text."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def name(self) -> str:
        return without_credentials(self.path)

    @property
    def location(self) -> str:
        return self.path

    def stamp(self) -> list[int]:
        if is_url(self.path):
            return remote.stamp(self.path)
        status = Path(self.path).stat()
        return [status.st_size, status.st_mtime_ns]

    def extent(self) -> int:
        """Return 1: the file can only be read from its beginning."""
        return 1

    @contextmanager
    def _open(self, *, from_start: bool, length: int = sys.maxsize) -> Generator[Any]:
        """Open the file, decompressed; any error of the block is raised as a `DataError`."""
        with remote.wrap_errors(self.name, FIX_FILE), self._raw(from_start, length) as file:
            if self.name.endswith(".gz"):
                yield GzipFile(fileobj=file)
            elif self.name.endswith(".bz2"):
                yield BZ2File(file)
            elif self.name.endswith(".zst"):
                stream = optional_package("pyarrow", "data").CompressedInputStream(file, "zstd")
                yield BufferedReader(stream, _BLOCK)  # decompressed in small blocks
            else:
                yield file

    def _raw(self, from_start: bool, length: int) -> Any:
        _require_regular_file(self.path)  # again: it may have been replaced since it was found
        if is_url(self.path):
            return remote.open_url(self.path, from_start=from_start, length=length)
        return Path(self.path).open("rb")


class _TextFile(_File):
    """A text file: one document, byte for byte."""

    def count(self) -> int:
        return 1

    def read(self, start: int, stop: int) -> Iterator[str]:
        if start < stop:
            with self._open(from_start=True) as file:
                data: bytes = file.read(DOCUMENT_BYTES.value + 1)
                require_document_size(len(data), self.name)
                yield _decode(data, self.name)


class _JsonLines(_File):
    """JSON lines: one object with a text field per line; empty lines are skipped."""

    def count(self) -> int:
        return sum(1 for _ in self._lines(0, sys.maxsize))

    def extent(self) -> int:
        """Return the number of bytes, or 1 if reading cannot begin in the middle.

        Compressed files are decompressed from the start, and HTTP servers may not send ranges.
        """
        is_whole = self.name.endswith(_COMPRESSED) or self.path.startswith(("http:", "https:"))
        return 1 if is_whole else max(1, self.stamp()[0])

    def read(self, start: int, stop: int) -> Iterator[str]:
        lines = islice(self._lines(0, sys.maxsize), start, stop)
        return (self._text(line, data) for line, data in lines)

    def read_part(self, start: int, stop: int) -> Iterator[tuple[str, str]]:
        """Yield place and text of the lines that begin in the range."""
        for line, data in self._lines(start, stop if self.extent() > 1 else sys.maxsize):
            yield f"{self.name}, line {line}", self._text(line, data)

    def _text(self, line: int | str, data: bytes) -> str:
        place, text = f"{self.name}, line {line}", _decode(data, self.name, line)
        if not self.column:
            return text
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError) as error:  # nested too deeply
            raise DataError(f"{place}: not JSON ({error}). {FIX_FILE}") from error
        return text_of(value, self.column, place)

    def _lines(self, start: int, stop: int) -> Iterator[tuple[int | str, bytes]]:
        """Yield the lines that begin in bytes start .. stop - 1, and their numbers or places."""
        longest = DOCUMENT_BYTES.value
        with self._open(from_start=True, length=stop - start) as file:
            position, data = start, b"\n"
            if start:  # a line that begins before belongs to the range before
                position, data = file.seek(start - 1), b""
            while not data.endswith(b"\n") and position < stop:
                data = file.readline(longest) or b"\n"
                position += len(data)
            for line_number in count(1):
                data = file.readline(longest + 1) if position < stop else b""
                if not data:
                    break
                line = f"at byte {position:,}" if start else line_number
                require_document_size(len(data), f"{self.name}, line {line}")
                if data.strip():
                    yield line, data
                position += len(data)


class ParquetFile(_File):
    """Parquet: one document per row, in one column."""

    def count(self) -> int:
        """Return the number of rows, from the file's footer."""
        with self._table() as (_, table):
            return table.metadata.num_rows

    def extent(self) -> int:
        """Return the number of bytes; row group i of N begins at i / N of them."""
        return max(1, self.stamp()[0])

    def read(self, start: int, stop: int) -> Iterator[str]:
        """Yield the texts; row groups outside the range are not read."""
        with self._table() as (file, table):
            for _, text in self._rows(file, table, start, stop):
                yield text

    def read_part(self, start: int, stop: int) -> Iterator[tuple[str, str]]:
        """Yield place and text of the rows of the row groups that begin in the range."""
        with self._table() as (file, table):
            groups = table.num_row_groups
            ends = [0, *accumulate(table.metadata.row_group(i).num_rows for i in range(groups))]
            extent = max(1, file.seek(0, os.SEEK_END))
            first, last = (min(groups, -(-groups * byte // extent)) for byte in (start, stop))
            yield from self._rows(file, table, ends[first], ends[last])

    @contextmanager
    def _table(self) -> Generator[tuple[Any, Any]]:
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open(from_start=False) as file, parquet.ParquetFile(file) as table:
            rows = table.metadata.num_rows
            _require_expansion(rows * _ROW_BYTES, file, f"{self.name}, {rows:,} rows")
            yield file, table

    def _rows(self, file: Any, table: Any, start: int, stop: int) -> Iterator[tuple[str, str]]:
        kind, row = self._kind_of_text(table.schema_arrow), 0
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if row < stop and row + rows > start:
                values = self._values(table, group, kind, file)
                for index, value in enumerate(islice(values, stop - row), start=row):
                    if index >= start:
                        place, data = f"{self.name}, row {index + 1}", value.as_buffer()
                        require_document_size(0 if data is None else data.size, place)
                        yield place, text_of({self.column: value.as_py()}, self.column, place)
            row += rows

    def _kind_of_text(self, schema: Any) -> Any:
        types = optional_package("pyarrow.types", "data")
        if schema.names.count(self.column) != 1:
            raise no_column(self.name, self.column, schema.names)
        kind = schema.field(self.column).type
        stored = getattr(kind, "storage_type", kind)  # of an extension type
        if str(stored.value_type if types.is_dictionary(stored) else stored) not in _TEXT_TYPES:
            raise DataError(
                f'{self.name}: a document must be a row with a string in "{self.column}", got a '
                f"column of {str(kind)[:80]}. {FIX_FILE}"
            )
        return stored

    def _values(self, table: Any, group: int, kind: Any, file: Any) -> Iterator[Any]:
        """Yield the strings of a row group as Arrow scalars.

        Sizes are as the footer states. Each row may hold the longest string, which is stored once:
        hence batches of few rows. With a dictionary, every batch copies it.
        """
        about = table.metadata.row_group(group)
        columns = [about.column(index) for index in range(about.num_columns)]
        (column,) = (column for column in columns if column.path_in_schema == self.column)
        size = column.total_uncompressed_size
        _require_expansion(size, file, self.name)
        least = 64 if optional_package("pyarrow.types", "data").is_dictionary(kind) else 1
        rows = min(max(least, _BATCH_BYTES // max(1, size)), _BATCH_ROWS)
        for batch in table.iter_batches(rows, row_groups=[group], columns=[self.column]):
            for value in batch.column(0):
                while not hasattr(value, "as_buffer"):  # of an extension type or a dictionary
                    value = value.value
                yield value


def find_documents(path: str | Path) -> list[Documents]:
    """Return the documents of a path or URL: a file, or all files of a folder sorted by name."""
    if isinstance(path, str) and is_url(path):
        return [reader(file) for file in remote.list_files(path, _ENDINGS)]
    path = Path(path)
    if path.is_dir():
        named = (file for file in path.rglob("*") if file.name.endswith(_ENDINGS))
        files = [file for file in named if file.is_symlink() or not file.is_dir()]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if not files:
            raise DataError(f"{path} has no documents: no name ends in {', '.join(_ENDINGS)}.")
        return [reader(str(file)) for file in files]
    if not path.exists() and not path.is_symlink():
        raise DataError(f"{path} is neither a file, nor a folder, nor in `gidd data list`.")
    return [reader(str(path))]


def reader(path: str, column: str = "text") -> Documents:
    """Return the documents of a file, whose format is given by the ending of its name."""
    name = without_credentials(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(name).decode(errors="backslashreplace")
        raise DataError(
            f"{shown}: the name of a source must be UTF-8, because it is recorded. Rename the file."
        ) from error
    _require_regular_file(path)
    if name.endswith(_JSON_LINES):
        return _JsonLines(path, column)
    if name.endswith(".parquet"):
        return ParquetFile(path, column)
    if name.endswith(".txt"):
        return _TextFile(path)
    raise DataError(f"{name}: the name of a source must end in {', '.join(_ENDINGS)}.")


def whole_lines(documents: Documents) -> Documents:
    """Return JSON lines as documents of their own; documents of other files raise `DataError`."""
    if not isinstance(documents, _JsonLines):
        raise DataError(
            f"{documents.name}: chats are read from JSON lines, a file that ends in "
            f"{', '.join(_JSON_LINES)}. Convert it, or leave --format chat out."
        )
    return _JsonLines(documents.path, "")


def _require_regular_file(name: str) -> None:
    """Refuse local pipes, devices and broken links: opening one may wait forever."""
    scheme, mark, rest = name.partition("://")
    if mark and scheme not in ("file", "local"):
        return
    path = Path(rest if mark else name)
    if (path.is_symlink() or path.exists()) and not path.is_file():
        raise DataError(f"{path} is a {file_kind(path)}, not a file. Leave it out.")


def _require_expansion(num_bytes: int, file: Any, place: str) -> None:
    """Raise a `DataError` if a Parquet file claims to expand to far more bytes than it has."""
    file.seek(0, os.SEEK_END)
    most = _EXPANSION * file.tell() + _SMALL
    if num_bytes > most:
        raise DataError(
            f"{place}: a file of {file.tell():,} bytes must expand to at most {most:,} bytes, got "
            f"{num_bytes:,}. If you trust the file, write it again without compression."
        )


def _decode(data: bytes, path: str, line: int | str = 1) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if isinstance(line, int):
            line += data.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}, line {line}: not UTF-8 ({error.reason}, byte {data[error.start]:#04x}). "
            "Convert the file to UTF-8 or leave it out."
        ) from error
