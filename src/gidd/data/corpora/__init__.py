"""Corpora by name, one small file each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents
from gidd.data.corpora.exact import HIDDEN_MARKOV, MARKOV, ExactCorpus
from gidd.data.corpora.fineweb import FINEWEB
from gidd.data.corpora.hf_dataset import PREFIX, HubCorpus
from gidd.data.corpora.lm1b import LM1B
from gidd.data.corpora.openwebtext import OPENWEBTEXT
from gidd.data.corpora.remote import is_url, without_credentials
from gidd.data.corpora.sotu import SOTU
from gidd.data.corpora.text8 import TEXT8
from gidd.data.corpora.text_files import Files
from gidd.data.corpora.tinystories import TINYSTORIES
from gidd.data.corpora.wikitext import WIKITEXT
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError

_ALL: tuple[Corpus, ...] = (
    *(OPENWEBTEXT, FINEWEB, LM1B, WIKITEXT, TINYSTORIES, TEXT8, SOTU),
    *(MARKOV, HIDDEN_MARKOV),
)
CORPORA = {corpus.name: corpus for corpus in _ALL}


class Resolved(NamedTuple):
    """What sources stand for."""

    documents: list[Documents]
    validation: int
    """How many of the last documents are for validation, unless the user says otherwise."""

    names: list[str]
    """The sources as they may be recorded: URLs without passwords and signatures."""

    known: dict[str, float]
    """Figures known beforehand."""

    tokenizer: Tokenizer | None
    """The one tokenizer that fits, None where any does."""


def corpora_of(sources: str | Path | Sequence[str | Path]) -> list[Corpus]:
    """The corpora, datasets, files and folders that sources name.

    A file or a folder comes before a corpus of the same name.
    """
    sources = [sources] if isinstance(sources, str | Path) else sources
    if not sources:
        raise ConfigError("sources must name at least one file, folder or corpus, got none.")
    corpora = [_corpus(source) for source in sources]
    for corpus in corpora:
        if len(corpora) > 1 and isinstance(corpus, ExactCorpus):
            raise ConfigError(
                f"sources must name {corpus.name} alone, got {len(corpora)} sources: its tokens "
                "are not those of other texts. Prepare it into a folder of its own."
            )
    return corpora


def _corpus(source: str | Path) -> Corpus:
    if isinstance(source, Path) or is_url(source) or Path(source).exists():
        return Files(str(source))
    if source.startswith(PREFIX):
        return HubCorpus.named(source)
    return CORPORA.get(source) or Files(source)


def resolve(sources: str | Path | Sequence[str | Path]) -> Resolved:
    """All documents of the sources, in their order.

    The last corpus says how many are held out: only the end of the whole list can be.
    """
    corpora = corpora_of(sources)
    documents = [part for corpus in corpora for part in corpus.documents()]
    names = [without_credentials(corpus.name) for corpus in corpora]
    last = corpora[-1]
    return Resolved(documents, last.validation(), names, last.known(), last.tokenizer())


def texts(sources: str | Path | Sequence[str | Path]) -> Iterator[str]:
    """The text of every document, one after the other."""
    for source in resolve(sources).documents:
        yield from source.read(0, source.count())


__all__ = [
    "CORPORA",
    "Corpus",
    "ExactCorpus",
    "Files",
    "HubCorpus",
    "Resolved",
    "corpora_of",
    "resolve",
    "texts",
]
