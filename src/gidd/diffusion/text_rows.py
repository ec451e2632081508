"""Texts to score, in batches of pairs of a text and a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@final
@dataclass(frozen=True)
class TextTokens:
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
        everything = torch.ones(len(self.tokens), dtype=torch.bool)
        valid = everything if self.valid is None else self.valid
        return valid if self.given is None else valid & ~self.given

    @property
    def num_scored(self) -> int:
        """Number of tokens whose likelihood is estimated."""
        return int(self.scored.sum())


@final
@dataclass(frozen=True)
class TextRows:
    """A batch of pairs of a text and a node, on a device."""

    text: Int[Tensor, " N"]
    """Number of each text, on the CPU, like `node`."""

    node: Int[Tensor, " N"]
    x: Int[Tensor, "N L"]
    index: Int[Tensor, " N"]
    given: Bool[Tensor, "N L"] | None
    scored: Bool[Tensor, "N L"] | None
    """Tokens with a loss; None if all have one."""

    @property
    def position(self) -> Int[Tensor, " L"]:
        """Positions in a text."""
        return torch.arange(self.x.shape[1], device=self.x.device)

    @property
    def node_on_device(self) -> Int[Tensor, " N"]:
        """Number of each node, on the device."""
        return self.node.to(self.x.device)

    def pick(self, values: Float[Tensor, "B T"]) -> Float[Tensor, " N"]:
        """Return the value of each pair, in float32 on the device of the tokens."""
        return values[self.text, self.node].float().to(self.x.device)

    def keep_given(self, z: Int[Tensor, "N L"]) -> Int[Tensor, "N L"]:
        """Return noisy texts with the given tokens restored."""
        return z if self.given is None else torch.where(self.given, self.x, z)

    def only_scored(self, values: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
        """Return values with 0 at tokens that are not scored."""
        return values if self.scored is None else values.masked_fill(~self.scored, 0)


@final
@dataclass(frozen=True)
class RowBatch:
    """Pairs of a text and a node whose texts have the same length; loaded when they are used."""

    texts: Sequence[TextTokens]
    pairs: Sequence[tuple[int, int]]
    device: torch.device | str

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self) -> TextRows:
        """Collect the texts of the pairs on the device."""
        text, node = torch.tensor(self.pairs).T
        rows = [self.texts[b] for b, _ in self.pairs]
        index = torch.tensor([row.index for row in rows], device=self.device)
        given = [row.given for row in rows]
        no_mask = torch.zeros(len(rows[0].tokens), dtype=torch.bool)
        is_plain = all(row.given is None and row.valid is None for row in rows)
        return TextRows(
            text,
            node,
            self._stack([row.tokens for row in rows]),
            index,
            None if is_plain else self._stack([no_mask if g is None else g for g in given]),
            None if is_plain else self._stack([row.scored for row in rows]),
        )

    def _stack(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(rows)).to(self.device)


def row_batches(
    texts: Sequence[TextTokens], nodes: range, tokens_per_call: int, device: torch.device | str
) -> list[RowBatch]:
    """Return all pairs of a text and a node in batches of texts of equal length."""
    order = sorted(range(len(texts)), key=lambda b: len(texts[b].tokens))
    batches: list[RowBatch] = []
    for length, group in groupby(order, key=lambda b: len(texts[b].tokens)):
        pairs = [(b, node) for b in group for node in nodes]
        size = max(1, tokens_per_call // max(length, 1))
        for start in range(0, len(pairs), size):
            batches.append(RowBatch(texts, pairs[start : start + size], device))
    return batches
