"""`Corpus`: documents with a name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gidd.data.corpora.documents import Documents
from gidd.data.tokenizers import Tokenizer


class Corpus(ABC):
    """A named source of documents for `gidd data prepare`.

    To add one, subclass this and register it: docs/extending.md. One of this package is listed in
    `hub_corpora.py`, or is a module in this folder that `__init__.py` lists.
    """

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
