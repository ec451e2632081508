"""Texts of the sources of `gidd.sources`, whose entropy is known: what no model can go below.

    gidd data prepare markov --out data/markov

Id i on disk is token i of the source; after the last come end-of-text, which also pads, and [MASK].
On the way a token is one character, so that documents are texts here as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents
from gidd.data.tokenizers import Tokenizer, character_level

if TYPE_CHECKING:
    from gidd.sources import Source  # loads torch, which the workers of other corpora do without

_BATCH = 256
"""Documents that are drawn at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class ExactCorpus(Corpus):
    """Documents of one length, all drawn independently from a source."""

    name: str
    description: str
    make: Callable[[], Source]
    """Builds the source, the same at every call."""

    num_documents: int = 10_000
    length: int = 512
    """Tokens of a document, end-of-text not counted."""

    held_out: int = 1_000
    seed: int = 0

    def documents(self) -> list[Documents]:
        """All of them, none of which is stored."""
        return [ExactDocuments(self)]

    def validation(self) -> int:
        """The last `held_out`."""
        return self.held_out

    def tokenizer(self) -> Tokenizer:
        """One id for each token of the source."""
        return character_level(self.symbols())

    def known(self) -> dict[str, float]:
        """Entropy of a token given all before it, in nats, and the standard error of that figure.

        It holds from the second token on of Markov text, and of hidden-Markov text in the limit.
        The end-of-text token adds nothing, for it comes at the same place in every document.
        """
        rate = self.make().entropy_rate()
        return {"entropy_rate": rate.nats, "entropy_rate_standard_error": rate.standard_error}

    def symbols(self) -> str:
        """The characters that stand for tokens 0, 1, ...: ASCII first, then Chinese ones."""
        num_tokens = self.make().num_tokens
        codes = [*range(ord("!"), ord("~") + 1), *range(0x4E00, 0x4E00 + num_tokens)]
        return "".join(map(chr, codes[:num_tokens]))


@final
@dataclass(frozen=True)
class ExactDocuments(Documents):
    """Document number i is a function of the corpus and i."""

    corpus: ExactCorpus

    @property
    def name(self) -> str:
        """As the corpus."""
        return self.corpus.name

    def stamp(self) -> list[int]:
        """All that tells two corpora of one name apart."""
        corpus = self.corpus
        return [corpus.num_documents * corpus.length, corpus.num_documents, corpus.seed]

    def count(self) -> int:
        """Number of documents."""
        return self.corpus.num_documents

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts, drawn anew."""
        import torch  # only now: see above

        source, corpus = self.corpus.make(), self.corpus
        codes = np.array([ord(symbol) for symbol in corpus.symbols()], dtype="<u4")
        for first in range(start, stop, _BATCH):
            samples = torch.arange(first, min(first + _BATCH, stop))
            for tokens in source.sample(corpus.seed, samples, corpus.length).numpy():
                yield codes[tokens].tobytes().decode("utf-32-le")


def _markov() -> Source:
    from gidd.sources import MarkovSource
    from gidd.sources.base import stationary_law

    transition = MarkovSource.random(64, 0.1).transition
    return MarkovSource(stationary_law(transition), transition)


def _hidden_markov() -> Source:
    from gidd.sources import HiddenMarkovSource
    from gidd.sources.base import stationary_law

    source = HiddenMarkovSource.random(8, 64, 0.1)
    law = stationary_law(source.transition)
    return HiddenMarkovSource(law, source.transition, source.emission)


MARKOV = ExactCorpus(
    name="markov",
    description="exact source, 64 tokens: each depends on the one before; known entropy",
    make=_markov,
)
HIDDEN_MARKOV = ExactCorpus(
    name="hidden-markov",
    description="exact source, 64 tokens: each depends on a hidden topic; known entropy",
    make=_hidden_markov,
)
