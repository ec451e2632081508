"""What a source of documents is: it knows how many it has and can read any range of them.

So tasks and splits are ranges. datatrove's readers are not used: they pass over an unreadable
document with a warning and over an empty one without, and each document that is silently absent
moves all others to other places in the order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from gidd.errors import DataError

MEND = "Mend the file or leave it out."


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


def text_of(value: object, column: str, place: str) -> str:
    """The text in a record, which must be a string of whole characters."""
    text: object = value.get(column) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(
            f'{place}: a document must be an object with a string in "{column}", '
            f"got {str(value)[:80]!r}. {MEND}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: half a character ({error.reason}). {MEND}") from error
    return text


def no_column(place: str, column: str, columns: Sequence[str]) -> DataError:
    """What to say of a table without the column of the texts."""
    return DataError(
        f'{place} must have a column "{column}", it has {sorted(columns)}. Rename the column; of a '
        "dataset on the Hugging Face hub, name it: hf:ORG/NAME?text=COLUMN."
    )


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
