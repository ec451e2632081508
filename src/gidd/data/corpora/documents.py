"""`Documents`: an ordered list of documents that can be divided among tasks; `Corpus`: a name.

Not datatrove's readers: they skip unreadable documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from gidd.common.files import DOCUMENT_BYTES
from gidd.common.terminal import shorten
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

FIX_FILE = "Fix the file or leave it out."


class Documents(ABC):
    """An ordered list of documents.

    Documents are read by their numbers, or by a range of the extent: tasks divide the extent of a
    file without reading it.
    """

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

    def extent(self) -> int:
        """Return the length that tasks divide: by default, the number of documents.

        The bytes of a file, or 1 if it can only be read from its beginning.
        """
        return self.count()

    def read_part(self, start: int, stop: int) -> Iterator[tuple[str, str]]:
        """Yield place and text of the documents that begin in start .. stop - 1 of the extent."""
        for index, text in enumerate(self.read(start, stop), start=start + 1):
            yield f"{self.name}, document {index}", text

    def texts(self) -> Iterator[str]:
        """Yield the text of every document, without counting them before."""
        return (text for _, text in self.read_part(0, self.extent()))


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
