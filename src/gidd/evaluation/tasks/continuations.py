"""From a context and a continuation to the tokens that are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from gidd.diffusion.likelihood import ScoredText
from gidd.errors import DataError
from gidd.pipeline.text import TokenTexts

_INDEX_BITS = 62


class Continuation(NamedTuple):
    """Tokens of a context and of its continuation, encoded together."""

    tokens: tuple[int, ...]
    start: int
    """Number of tokens of the context."""


def encode_continuation(texts: TokenTexts, context: str, continuation: str) -> Continuation:
    """Encode both together, and split them after the tokens of the context alone.

    Spaces at the end of the context belong to the continuation, as in lm-evaluation-harness. The
    continuation has at least one token, also if its text is merged with the end of the context.
    """
    head = context.rstrip()
    whole = texts.encode(context + continuation, "a context with its continuation")
    if not continuation or not whole:
        raise DataError(f"a continuation must not be empty, got {continuation!r} to score.")
    start = len(texts.encode(head, "a context")) if head else 0
    return Continuation(tuple(whole), min(start, len(whole) - 1))


def stable_index(texts: Iterable[str], number: int = 0) -> int:
    """Return an index of random numbers that depends on the set of texts, not on their order."""
    digest = hashlib.sha256(number.to_bytes(8, "big"))
    for text in sorted(set(texts)):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return int.from_bytes(digest.digest()[:8], "big") >> (64 - _INDEX_BITS)


def scored_windows(length: int, start: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows (begin, first scored, end) of at most `size` tokens that score each once.

    The tokens from `start` on are scored. If they fit, there is one window with the last tokens;
    otherwise each window begins with up to half a context of the tokens before those it scores.
    """
    if length - start <= size:
        yield max(0, length - size), start, length
        return
    while start < length:
        end = min(length, start + size - min(start, size // 2))
        yield max(0, end - size), start, end
        start = end


def conditional_parts(
    tokens: Sequence[int], start: int, size: int, question: Sequence[str]
) -> tuple[ScoredText, ...]:
    """Return the texts that score the tokens from `start` on, given those before."""
    parts: list[ScoredText] = []
    for number, (begin, first, end) in enumerate(scored_windows(len(tokens), start, size)):
        given = torch.arange(begin, end) < first
        text = torch.tensor(tokens[begin:end])
        index = stable_index(question, number)
        parts.append(ScoredText(text, index, given if first > begin else None))
    return tuple(parts)


def joint_parts(
    tokens: Sequence[int], start: int, size: int, question: Sequence[str]
) -> tuple[ScoredText, ...]:
    """Return the text that scores context and continuation: the last `size` tokens of both.

    A continuation that does not fit is scored by `conditional_parts`, so that none of its tokens
    are dropped.
    """
    if len(tokens) - start > size:
        return conditional_parts(tokens, start, size, question)
    return (ScoredText(torch.tensor(tokens[-size:]), stable_index(question)),)
