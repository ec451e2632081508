"""Texts to score, in batches of pairs of a text and a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@final
@dataclass(frozen=True)
class ScoredText:
    """A text to score."""

    tokens: Int[Tensor, " L"]
    index: int
    """Address of its random numbers: texts with equal indices share times and noise."""
    given: Bool[Tensor, " L"] | None = None
    """Condition: tokens that are never noised and not scored."""
    valid: Bool[Tensor, " L"] | None = None
    """False for padding, which is noised like text and not scored."""

    @property
    def scored(self) -> Bool[Tensor, " L"]:
        """Tokens whose likelihood is estimated."""
        valid = torch.ones(len(self.tokens), dtype=torch.bool) if self.valid is None else self.valid
        return valid if self.given is None else valid & ~self.given

    @property
    def num_scored(self) -> int:
        """Number of tokens whose likelihood is estimated."""
        return int(self.scored.sum())


@final
@dataclass(frozen=True)
class ScoringBatch:
    """A batch of pairs of a text and a node, on a device."""

    text: Int[Tensor, " N"]
    """Number of each text, on the CPU, like `node`."""
    node: Int[Tensor, " N"]
    x: Int[Tensor, "N L"]
    index: Int[Tensor, " N"]
    given: Bool[Tensor, "N L"] | None
    scored: Bool[Tensor, "N L"] | None
    """Tokens with a loss; None if all have one."""

    @classmethod
    def load(
        cls, texts: Sequence[ScoredText], pairs: Sequence[tuple[int, int]], device: Any
    ) -> ScoringBatch:
        """Collect pairs of a text and a node on the device; their texts have the same length."""
        rows, (text, node) = [texts[b] for b, _ in pairs], torch.tensor(pairs).T
        x = torch.stack([row.tokens for row in rows]).to(device)
        index = torch.tensor([row.index for row in rows], device=device)
        if all(row.given is None and row.valid is None for row in rows):
            return cls(text, node, x, index, None, None)
        none = torch.zeros(x.shape[1], dtype=torch.bool)
        given = torch.stack([none if row.given is None else row.given for row in rows])
        scored = torch.stack([row.scored for row in rows])
        return cls(text, node, x, index, given.to(device), scored.to(device))

    @property
    def position(self) -> Int[Tensor, " L"]:
        """Positions in a text."""
        return torch.arange(self.x.shape[1], device=self.x.device)

    def pick(self, values: Float[Tensor, "B T"]) -> Float[Tensor, " N"]:
        """Return the value of each pair, in float32 on the device of the tokens."""
        return values[self.text, self.node].float().to(self.x.device)

    def keep_given(self, z: Int[Tensor, "N L"]) -> Int[Tensor, "N L"]:
        """Return noisy texts with the given tokens restored."""
        return z if self.given is None else torch.where(self.given, self.x, z)


def pair_batches(
    texts: Sequence[ScoredText], nodes: range, tokens_per_batch: int
) -> list[list[tuple[int, int]]]:
    """Return all pairs (text, node), by their numbers, in batches of texts of equal length."""
    order = sorted(range(len(texts)), key=lambda b: len(texts[b].tokens))
    batches: list[list[tuple[int, int]]] = []
    for length, group in groupby(order, key=lambda b: len(texts[b].tokens)):
        pairs = [(b, node) for b in group for node in nodes]
        size = max(1, tokens_per_batch // max(length, 1))
        batches += [pairs[start : start + size] for start in range(0, len(pairs), size)]
    return batches
