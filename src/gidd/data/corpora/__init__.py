"""Corpora by name, one small file each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gidd.data.corpora.base import Corpus
from gidd.data.corpora.fineweb import FINEWEB
from gidd.data.corpora.hub import HubCorpus
from gidd.data.corpora.lm1b import LM1B
from gidd.data.corpora.openwebtext import OPENWEBTEXT
from gidd.data.corpora.sotu import SOTU
from gidd.data.corpora.text8 import TEXT8
from gidd.data.corpora.text_files import Files
from gidd.data.corpora.tinystories import TINYSTORIES
from gidd.data.corpora.wikitext import WIKITEXT
from gidd.data.documents import Documents
from gidd.errors import ConfigError

_ALL: tuple[Corpus, ...] = (OPENWEBTEXT, FINEWEB, LM1B, WIKITEXT, TINYSTORIES, TEXT8, SOTU)
CORPORA = {corpus.name: corpus for corpus in _ALL}


def resolve(sources: str | Path | Sequence[str | Path]) -> tuple[list[Documents], int]:
    """All documents of files, folders and named corpora, and how many are for validation.

    The last corpus says how many: only the end of the whole list can be held out. A file or a
    folder comes before a corpus of the same name.
    """
    sources = [sources] if isinstance(sources, str | Path) else sources
    if not sources:
        raise ConfigError("sources must name at least one file, folder or corpus, got none.")
    documents: list[Documents] = []
    validation = 0
    for source in sources:
        known = isinstance(source, str) and source in CORPORA and not Path(source).exists()
        corpus = CORPORA[str(source)] if known else Files(str(source))
        documents += corpus.documents()
        validation = corpus.validation()
    return documents, validation


__all__ = ["CORPORA", "Corpus", "Files", "HubCorpus", "resolve"]
