"""Where documents come from: text files, JSON lines, Parquet.

Every source knows how many documents it has and can read any range of them, so that tasks and
splits are ranges. datatrove's readers are not used: they pass over an unreadable document with a
warning and over an empty one without, and each document that is silently absent moves all others
to other places in the order.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final

from gidd.data.zstd import ZstdReader
from gidd.errors import DataError, GiddError
from gidd.optional import optional_package

_JSON_LINES = tuple(f"{kind}{end}" for kind in (".jsonl", ".ndjson") for end in ("", ".gz", ".zst"))
_ENDINGS = (".txt", *_JSON_LINES, ".parquet")
_MEND = "Mend the file or leave it out."


class Documents(ABC):
    """An ordered list of documents that can be read in part."""

    quick_count: ClassVar[bool] = True
    """Whether counting takes no time, that is, does not read the documents."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Where they are, for messages and records."""

    @abstractmethod
    def stamp(self) -> list[int]:
        """Numbers that change when the documents do: a file's bytes and time of change."""

    @abstractmethod
    def count(self) -> int:
        """Number of documents."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[str]:
        """Documents start .. stop - 1."""


@dataclass(frozen=True)
class _File(Documents):
    path: str

    @property
    def name(self) -> str:
        return self.path

    def stamp(self) -> list[int]:
        status = Path(self.path).stat()
        return [status.st_size, status.st_mtime_ns]

    @contextmanager
    def _open(self) -> Generator[Any]:
        """The file's bytes, decompressed; whatever goes wrong with them is a DataError."""
        system = optional_package("fsspec", "data")
        try:
            compression = "gzip" if self.path.endswith(".gz") else None
            with system.open(self.path, "rb", compression=compression) as file:
                yield BufferedReader(ZstdReader(file)) if self.path.endswith(".zst") else file
        except GiddError:
            raise
        except Exception as error:  # each compression has errors of its own
            kind = type(error).__name__
            raise DataError(f"{self.path} cannot be read: {kind} {error}. {_MEND}") from error


@final
class TextFile(_File):
    """One document: the whole file, byte for byte."""

    def count(self) -> int:
        """One."""
        return 1

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The text."""
        if start < stop:
            with self._open() as file:
                data: bytes = file.read()
                yield _decode(data, self.path, 1)


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
            text = _decode(line, self.path, number)
            try:
                value: object = json.loads(text)
            except ValueError as error:
                raise DataError(
                    f"{self.path}, line {number}: not JSON ({error}). {_MEND}"
                ) from error
            yield _text_of(value, f"{self.path}, line {number}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._open() as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line


@final
class ParquetFile(_File):
    """One document per row, in the column "text"."""

    def count(self) -> int:
        """Number of rows, from the file's footer."""
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open() as file, parquet.ParquetFile(file) as table:
            return table.metadata.num_rows

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts; row groups outside the range are not read."""
        parquet = optional_package("pyarrow.parquet", "data")
        with self._open() as file, parquet.ParquetFile(file) as table:
            if "text" not in table.schema_arrow.names:
                raise DataError(
                    f'{self.path} must have a column "text", it has {table.schema_arrow.names}. '
                    "Rename the column."
                )
            row = 0
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if row < stop and row + rows > start:
                    texts = table.read_row_group(group, columns=["text"]).column("text")
                    for number in range(max(row, start), min(row + rows, stop)):
                        text = texts[number - row].as_py()
                        yield _text_of({"text": text}, f"{self.path}, row {number + 1}")
                row += rows


def find_documents(path: str | Path) -> list[Documents]:
    """The documents of a file, or of all files below a folder in the order of their names."""
    path = Path(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.name.endswith(_ENDINGS)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if not files:
            raise DataError(
                f"{path} holds no document: there is no file below it that ends in "
                f"{', '.join(_ENDINGS)}. Check the folder."
            )
        return [_reader(file) for file in files]
    if not path.is_file():
        raise DataError(
            f"{path} is neither a file, nor a folder, nor a corpus of `gidd data list`. "
            "Check the spelling."
        )
    return [_reader(path)]


def _reader(path: Path) -> Documents:
    if path.name.endswith(_JSON_LINES):
        return JsonLines(str(path))
    if path.name.endswith(".parquet"):
        return ParquetFile(str(path))
    if path.name.endswith(".txt"):
        return TextFile(str(path))
    raise DataError(
        f"{path}: the name of a source must end in {', '.join(_ENDINGS)}. "
        "Rename the file, or convert it to JSON lines."
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


def _text_of(value: object, place: str) -> str:
    """The field "text" of a record, which must be a string of whole characters."""
    text: object = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(
            f'{place}: a document must be an object with a string in "text", '
            f"got {str(value)[:80]!r}. {_MEND}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: half a character ({error.reason}). {_MEND}") from error
    return text


def read_range(
    parts: Sequence[tuple[Documents, int, int]],
) -> Iterator[str]:
    """Documents of several sources, one range after the other; each range must be whole."""
    for documents, start, stop in parts:
        found = 0
        for text in documents.read(start, stop):
            found += 1
            yield text
        if found != stop - start:
            raise DataError(
                f"{documents.name} must have documents {start} to {stop - 1}, but ends after "
                f"{start + found}: it changed since it was counted. Prepare into a new folder."
            )
