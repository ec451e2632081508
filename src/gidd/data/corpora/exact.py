"""Samples of `gidd.sources`, whose entropy is known: a lower bound on the loss of any model.

Token id i on disk is token i of the source, then end-of-text (also the padding) and [MASK]. In
documents each token is one character, or a word with a space before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gidd.data.corpora.documents import Corpus, Documents
from gidd.data.tokenizers import Tokenizer, character_level, word_level

if TYPE_CHECKING:
    from gidd.sources import Source  # imports torch, which other corpora do not need

_BATCH = 1024  # documents sampled at a time


@dataclass(frozen=True, kw_only=True)
class ExactCorpus(Corpus):
    """Documents of equal length, sampled independently from a source."""

    name: str
    description: str
    make: Callable[[], Source]
    """Builds the source; every call must build the same one."""
    words: Callable[[], tuple[str, ...]] | None = None
    """Returns the word of each token; None: tokens are characters."""
    num_documents: int = 10_000
    length: int = 512
    """Tokens per document, without end-of-text."""
    held_out: int = 1_000
    seed: int = 0

    def documents(self) -> list[Documents]:
        """Return all documents; they are sampled when read."""
        return [_Samples(self)]

    def tokenizer(self) -> Tokenizer:
        """Return a tokenizer with one token per token of the source."""
        return character_level(self.symbols()) if self.words is None else word_level(self.words())

    def known(self) -> dict[str, float]:
        """Return the entropy of a token given all previous ones, in nats, and its standard error.

        It is exact from the second token on for Markov text, in the limit for hidden-Markov text.
        """
        rate = self.make().entropy_rate()
        return {"entropy_rate": rate.nats, "entropy_rate_standard_error": rate.standard_error}

    def symbols(self) -> str:
        """Return the characters of tokens 0, 1, ...: ASCII first, then Chinese characters."""
        num_tokens = self.make().num_tokens
        codes = [*range(ord("!"), ord("~") + 1), *range(0x4E00, 0x4E00 + num_tokens)]
        return "".join(map(chr, codes[:num_tokens]))


@dataclass(frozen=True)
class _Samples(Documents):
    """Documents of an `ExactCorpus`; document i is a function of the corpus and i."""

    corpus: ExactCorpus

    @property
    def name(self) -> str:
        return self.corpus.name

    def stamp(self) -> list[int]:
        corpus = self.corpus
        return [corpus.num_documents * corpus.length, corpus.num_documents, corpus.seed]

    def count(self) -> int:
        return self.corpus.num_documents

    def read(self, start: int, stop: int) -> Iterator[str]:
        import torch  # not at import of gidd.data

        source, corpus = self.corpus.make(), self.corpus
        texts = np.array(corpus.words() if corpus.words else [*corpus.symbols()])
        between = " " if corpus.words else ""
        for first in range(start, stop, _BATCH):
            samples = torch.arange(first, min(first + _BATCH, stop))
            for tokens in source.sample(corpus.seed, samples, corpus.length).numpy():
                yield between.join(texts[tokens])


def _markov() -> Source:
    from gidd.sources import MarkovSource, stationary_distribution

    transition = MarkovSource.random(64, 0.1).transition
    return MarkovSource(stationary_distribution(transition), transition)


def _hidden_markov() -> Source:
    from gidd.sources import HiddenMarkovSource, stationary_distribution

    source = HiddenMarkovSource.random(8, 64, 0.1)
    initial = stationary_distribution(source.transition)
    return HiddenMarkovSource(initial, source.transition, source.emission)


def _sentences() -> Source:
    from gidd.sources import sentence_source

    return sentence_source()[0]


def _sentence_words() -> tuple[str, ...]:
    from gidd.sources import sentence_source

    return sentence_source()[1]


MARKOV = ExactCorpus(
    name="markov",
    description="exact source, 64 tokens: each depends on the previous one; known entropy",
    make=_markov,
)
HIDDEN_MARKOV = ExactCorpus(
    name="hidden-markov",
    description="exact source, 64 tokens: each depends on a hidden state; known entropy",
    make=_hidden_markov,
)
SENTENCES = ExactCorpus(
    name="sentences",
    description="exact source, 58 words: agreement, names, small arithmetic; known entropy",
    make=_sentences,
    words=_sentence_words,
    num_documents=4_000,
    held_out=400,
)
