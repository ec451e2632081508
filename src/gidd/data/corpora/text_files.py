"""Files of the user: text, JSON lines, Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import find_documents


@final
@dataclass(frozen=True)
class Files(Corpus):
    """A file, or all files below a folder in the order of their names; a path or a URL."""

    name: str
    description = "files, folders and URLs: .txt, .jsonl, .jsonl.gz, .jsonl.zst, .parquet"

    def documents(self) -> list[Documents]:
        """One document per text file, line or row."""
        return find_documents(self.name)

    def validation(self) -> int:
        """None."""
        return 0
