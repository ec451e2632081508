"""What a corpus is: documents that have a name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gidd.data.corpora.documents import Documents
from gidd.data.tokenizers import Tokenizer


class Corpus(ABC):
    """Documents that can be named in `gidd data prepare`.

    To add one, write a small file here and list it in `__init__.py`.
    """

    name: str
    """What the user types."""

    description: str
    """One line for `gidd data list`."""

    @abstractmethod
    def documents(self) -> list[Documents]:
        """All documents; those for validation come last."""

    @abstractmethod
    def validation(self) -> int:
        """How many of the last documents are for validation, unless the user says otherwise."""

    def tokenizer(self) -> Tokenizer | None:
        """The one tokenizer that fits, None where any does."""
        return None

    def known(self) -> dict[str, float]:
        """Figures that are known of the documents beforehand, for the manifest."""
        return {}
