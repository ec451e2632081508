"""Where documents come from.

Reading order: `documents` (a list of texts that can be read by ranges), `base` (the interface
`Corpus`), `formats` and `remote` (files and URLs), `hf_dataset` and `exact` (other kinds of
corpora), `hub_corpora` and `sotu` (corpora by name).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gidd.common.urls import is_url
from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.exact import HIDDEN_MARKOV, MARKOV, ExactCorpus
from gidd.data.corpora.formats import Files
from gidd.data.corpora.hf_dataset import PREFIX, HubCorpus
from gidd.data.corpora.hub_corpora import HUB_CORPORA
from gidd.data.corpora.sotu import SOTU
from gidd.errors import ConfigError

_ALL: tuple[Corpus, ...] = (*HUB_CORPORA, SOTU, MARKOV, HIDDEN_MARKOV)
CORPORA = {corpus.name: corpus for corpus in _ALL}


def corpora_of(sources: str | Path | Sequence[str | Path]) -> list[Corpus]:
    """Return the corpora, datasets, files and folders with the given names.

    A file or a folder takes precedence over a corpus of the same name.
    """
    sources = [sources] if isinstance(sources, str | Path) else sources
    if not sources:
        raise ConfigError("sources must contain at least one file, folder or corpus, got none.")
    corpora = [_corpus(source) for source in sources]
    for corpus in corpora:
        if len(corpora) > 1 and isinstance(corpus, ExactCorpus):
            raise ConfigError(
                f"sources must be {corpus.name} alone, got {len(corpora)} sources: it has its own "
                "tokenizer. Prepare it into a folder of its own."
            )
    return corpora


def _corpus(source: str | Path) -> Corpus:
    if isinstance(source, Path) or is_url(source) or Path(source).exists():
        return Files(str(source))
    if source.startswith(PREFIX):
        return HubCorpus.from_source(source)
    return CORPORA.get(source) or Files(source)


def resolve(sources: str | Path | Sequence[str | Path]) -> list[Documents]:
    """Return all documents of the sources, in order."""
    return [part for corpus in corpora_of(sources) for part in corpus.documents()]


def texts(sources: str | Path | Sequence[str | Path]) -> Iterator[str]:
    """Yield the text of every document."""
    for source in resolve(sources):
        yield from source.read(0, source.count())


__all__ = [
    "CORPORA",
    "Corpus",
    "ExactCorpus",
    "Files",
    "HubCorpus",
    "corpora_of",
    "resolve",
    "texts",
]
