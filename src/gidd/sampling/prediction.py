"""x_theta of a few sequences, computed when it is asked for and where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.processors import Processor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

TILE_ENTRIES = 6_500_000
"""Largest [positions, V] tensor that is formed at once; 128 positions of GPT-2's vocabulary."""

BLOCK_ENTRIES = 1 << 20
"""Entries that are processed and looked at together, so that they stay in a core's cache."""

Look = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""(rows of x_theta [K, V], their places in the flattened [B * L]) -> findings, each [K]."""


class Observation(NamedTuple):
    """What the network thinks of every token it was shown."""

    probability: Float[Tensor, "B L"]
    """x_theta of the token that stands there."""

    entropy: Float[Tensor, "B L"]
    """Entropy of x_theta, in nats."""

    top: Int[Tensor, "B L"]
    """The most likely token."""

    top_probability: Float[Tensor, "B L"]
    """x_theta of the most likely token."""


@final
class Prediction:
    """x_theta(z, t) after the processors. Nothing is computed before the first `read`.

    Numbers must not depend on who shares the batch, and a matrix product's last bits depend on its
    shape. So shapes are fixed: the caller always brings the same number of sequences, and the head
    sees positions of one sequence only (B = 1), or whole tiles, filled up with zeros (B > 1).
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        t: Float[Tensor, " B"],
        z: Int[Tensor, "B L"],
        vocab_size: int,
        processors: Sequence[Processor] = (),
    ) -> None:
        self.network = network
        self.t = t
        self.z = z
        self.vocab_size = vocab_size
        self.processors = processors
        self.asked = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        """The sequences at which something was read; if there are none, the network rested."""
        self._hidden: Tensor | None = None

    def read(self, where: Bool[Tensor, "B L"], look: Look) -> tuple[Tensor, ...]:
        """What `look` finds at the chosen positions, each finding as [B, L] with 0 elsewhere.

        If no position is chosen, the network is not called.
        """
        self.asked = self.asked | where.any(-1)
        index = where.flatten().nonzero().squeeze(-1)
        if len(index):
            parts = [look(*block) for part in index.split(self._tile) for block in self._rows(part)]
        else:
            parts = [look(torch.empty(0, self.vocab_size, device=index.device), index)]
        findings = (torch.cat(finding) for finding in zip(*parts, strict=True))
        return tuple(self._spread(index, finding) for finding in findings)

    def dense(self) -> Float[Tensor, "B L V"]:
        """All of x_theta at once: for definitions and small vocabularies."""
        self.asked = torch.ones_like(self.asked)
        index = torch.arange(self.z.numel(), device=self.z.device)
        blocks = [rows for part in index.split(self._tile) for rows, _ in self._rows(part)]
        return torch.cat(blocks).unflatten(0, self.z.shape)

    def observe(self) -> Observation:
        """Opinions on all positions; one more pass of the head, no other number is touched."""
        z = self.z.flatten()

        def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            top_probability, top = rows.max(-1)
            entropy = torch.special.entr(rows).sum(-1)
            return rows.gather(-1, z[i, None]).squeeze(-1), entropy, top, top_probability

        return Observation(*self.read(torch.ones_like(self.z, dtype=torch.bool), look))

    @property
    def _tile(self) -> int:
        """Positions whose rows exist at once: a multiple of 32, so that no vector has a tail."""
        most = max(32, TILE_ENTRIES // self.vocab_size // 32 * 32)
        return min(most, (self.z.numel() + 31) // 32 * 32)

    def _rows(self, index: Int[Tensor, " K"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of x_theta and their places, block by block."""
        if self._hidden is None:
            self._hidden = self.network.hidden(self.z, self.t).flatten(0, 1)
        hidden = self._hidden[index]
        if len(self.z) > 1:
            hidden = torch.cat([hidden, hidden.new_zeros(self._tile - len(index), hidden.shape[1])])
        rows = self.network.distribution(hidden)
        block = max(32, BLOCK_ENTRIES // self.vocab_size // 32 * 32)  # no vector has a tail
        for part, places in zip(rows.split(block), index.split(block), strict=False):
            for processor in self.processors:
                part = processor(part)  # before rows of zeros are cut off: sums depend on shapes
            yield part[: len(places)], places

    def _spread(self, index: Tensor, finding: Tensor) -> Tensor:
        everywhere = finding.new_zeros(self.z.numel())
        return everywhere.scatter(0, index, finding).unflatten(0, self.z.shape)
