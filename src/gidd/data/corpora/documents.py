"""`Documents`: a list of documents with a length, of which any range can be read; `Corpus`: a name.

Not datatrove's readers: they skip unreadable documents, which shifts all later ones.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import ClassVar

from gidd.common.files import DOCUMENT_BYTES
from gidd.common.terminal import shorten
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

FIX_FILE = "Fix the file or leave it out."


Mark = tuple[int, int, int]
"""A document, and the number and the first byte of its line."""


class Documents(ABC):
    """An ordered list of documents that can be read by ranges."""

    quick_count: ClassVar[bool] = True
    """Whether `count` is fast, that is, does not read the documents."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Path, URL or other location, for messages and records."""

    @property
    def location(self) -> str:
        """What is opened: `name`, but a URL with its credentials or references to them."""
        return self.name

    @abstractmethod
    def stamp(self) -> list[int]:
        """Return numbers that change with the documents: a file's size and modification time."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of documents."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[str]:
        """Yield documents start .. stop - 1, or up to the last one if there are fewer."""

    def count_with_marks(self) -> tuple[int, list[Mark]]:
        """Return the number of documents, and where reading can begin besides the first one."""
        return self.count(), []

    def with_marks(self, marks: Sequence[Mark]) -> Documents:
        """Return the same documents; `read` begins at the last of these marks before a range."""
        return self


class Corpus(ABC):
    """A named source of documents for `gidd data prepare`; to add one: docs/howto/corpus.md."""

    name: str
    """Name on the command line."""
    description: str
    """One line, shown by `gidd data list`."""
    held_out: int = 0
    """Default number of documents, at the end, to hold out for validation."""

    @abstractmethod
    def documents(self) -> list[Documents]:
        """Return all documents, those for validation last."""

    def validation(self) -> int:
        """Return the number of documents to hold out by default."""
        return self.held_out

    def tokenizer(self) -> Tokenizer | None:
        """Return the only tokenizer that can encode the documents, or None if any can."""
        return None

    def known(self) -> dict[str, float]:
        """Return exact figures of the documents, for the manifest."""
        return {}


def text_of(value: object, column: str, place: str) -> str:
    """Return the text of a record, which must be valid Unicode."""
    text: object = value.get(column) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(
            f'{place}: a document must be an object with a string in "{column}", '
            f"got {shorten(value)}. {FIX_FILE}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: invalid Unicode ({error.reason}). {FIX_FILE}") from error
    return text


def require_document_size(num_bytes: int, place: str) -> None:
    """Raise a `DataError` if a document, or the line that contains it, is too long."""
    if num_bytes > DOCUMENT_BYTES.value:
        raise DataError(
            f"{place}: a document must have at most {DOCUMENT_BYTES.value:,} bytes, got more. "
            f"Split it, or raise the limit: {DOCUMENT_BYTES.variable}=N."
        )


@contextmanager
def named(place: str) -> Generator[None]:
    """Raise a `DataError` of the block again, with the document or chat that it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def no_column(place: str, column: str, columns: Sequence[str]) -> DataError:
    """Return the error for a table that lacks the text column."""
    return DataError(
        f'{place} must have a column "{column}", it has {shorten(sorted(columns))}. Rename the '
        "column, or for a dataset on the Hugging Face hub name it: hf:ORG/NAME?text=COLUMN."
    )


def read_ranges(parts: Sequence[tuple[Documents, int, int]]) -> Iterator[tuple[str, str]]:
    """Yield place and text of the documents of (source, start, stop) ranges, which must exist."""
    for documents, start, stop in parts:
        count = 0
        for text in _read_on(documents, start, stop):
            count += 1
            yield f"{documents.name}, document {start + count}", text
        if count != stop - start:
            raise DataError(
                f"{documents.name} must have documents {start} to {stop - 1}, but has only "
                f"{start + count}: it changed after it was counted. Prepare into a new folder."
            )


_reading: list[tuple[Documents, int, Iterator[str]]] = []
"""At most one source, its next document and the texts from there on."""


def _read_on(documents: Documents, start: int, stop: int) -> Iterator[str]:
    """Yield documents start .. stop - 1.

    Where they can only be reached by reading all documents before them, continue after the range
    that this process has read last.
    """
    if documents.quick_count:
        yield from documents.read(start, stop)
        return
    source, position, texts = _reading.pop() if _reading else (None, 0, iter(()))
    if source != documents or position > start:
        position, texts = start, documents.read(start, sys.maxsize)
    yield from islice(texts, start - position, start - position + stop - start)
    with suppress(DataError):  # raised again by the task that reads the next document
        for following in texts:  # the file is closed after the last one
            _reading[:] = [(documents, stop, chain([following], texts))]
            break
