"""Windows over documents: every token is scored in exactly one window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.likelihood import ScoredText
from gidd.errors import ConfigError
from gidd.evaluation.texts import documents, texts_digest
from gidd.pipeline.text import TokenTexts

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MAX_DEFAULT_LENGTH = 2048
"""Longest default window: some contexts are longer than memory allows."""


class ScoringWindow(NamedTuple):
    """Tokens `start` to `stop` of a document, of which the first ones may be given."""

    document: int
    start: int
    stop: int

    num_given: int
    """Tokens at the start that another window scores: the condition of this one."""


class EncodedDocument(NamedTuple):
    """A document as tokens."""

    id: str
    tokens: Int[Tensor, " n"]
    num_bytes: int
    """UTF-8 bytes of the text."""


class EncodedCorpus(NamedTuple):
    """Documents that have tokens."""

    documents: list[EncodedDocument]
    num_skipped: int
    """Documents without a token."""

    sha256: str
    """Of all texts."""


class WindowScores(NamedTuple):
    """Likelihoods of windows in nats, in float64 on the CPU."""

    nelbo: Float[Tensor, " W"]
    num_scored: Int[Tensor, " W"]
    """Scored tokens of each window."""

    calls: int
    """Forward passes of single windows."""

    device: str
    """Where they were computed, which need not be this machine."""

    tokens_per_call: int
    repeats: int = 1
    standard_error: Float[Tensor, " W"] | None = None
    """Monte Carlo error; None if the likelihood is exact."""

    reconstruction: Float[Tensor, "R W"] | None = None
    """The part of `nelbo` below the smallest time, of each repeat."""

    prior: Float[Tensor, " W"] | None = None
    """The part of `nelbo` above the largest time."""


def scoring_windows(
    document: int, num_tokens: int, length: int, stride: int
) -> Iterator[ScoringWindow]:
    """Yield windows of at most `length` tokens.

    The first window scores all its tokens. Each of the others scores the next `stride` tokens,
    given the `length - stride` tokens before them.
    """
    stop = min(length, num_tokens)
    yield ScoringWindow(document, 0, stop, 0)
    while stop < num_tokens:
        first, stop = stop, min(stop + stride, num_tokens)
        start = first - (length - stride)
        yield ScoringWindow(document, start, stop, first - start)


def window_length(length: int | None, stride: int | None, context: int) -> tuple[int, int]:
    """Return length and stride of windows; raise if the model has a smaller context."""
    found = min(context, MAX_DEFAULT_LENGTH) if length is None else length
    if found > context:
        raise ConfigError(
            f"length must be at most the model's context of {context:,} tokens, got {found:,}."
        )
    if stride is not None and stride > found:
        raise ConfigError(f"stride must be at most the length {found:,}, got {stride:,}.")
    return found, stride or found


def window_texts(
    corpus: Sequence[EncodedDocument], windows: Sequence[ScoringWindow]
) -> list[ScoredText]:
    """Return the tokens of each window; the number of a window addresses its random numbers."""
    texts: list[ScoredText] = []
    for index, window in enumerate(windows):
        tokens = corpus[window.document].tokens[window.start : window.stop]
        given = torch.arange(len(tokens)) < window.num_given if window.num_given else None
        texts.append(ScoredText(tokens, index, given))
    return texts


def encode_corpus(
    sources: Sequence[str],
    token_texts: TokenTexts,
    *,
    max_documents: int | None = None,
    last: Sequence[int] = (),
) -> EncodedCorpus:
    """Read and encode documents; `last` is appended to each.

    A text that the tokenizer does not restore exactly is a `DataError`: its likelihood would be
    that of another text.
    """
    found: list[EncodedDocument] = []
    num_skipped = 0

    def texts() -> Iterator[str]:
        nonlocal num_skipped
        read = documents(sources, tokenizer=token_texts.tokenizer, max_documents=max_documents)
        for document in read:
            tokens = document.tokens
            if tokens is None:
                tokens = token_texts.encode(document.text, f"the text of {document.id}")
            if tokens:
                ids = torch.tensor([*tokens, *last])
                found.append(EncodedDocument(document.id, ids, len(document.text.encode())))
            else:
                num_skipped += 1
            yield document.text

    digest = texts_digest(texts())  # reads them one after the other: only tokens are kept
    return EncodedCorpus(found, num_skipped, digest)
