"""x_theta of a batch, computed on first use and only at the positions that are read."""

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
"""Maximum size of a [positions, V] tensor: 128 positions for GPT-2's vocabulary."""

BLOCK_ENTRIES = 1 << 20
"""Entries that are processed together, so that they stay in a core's cache."""

RowFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""(rows of x_theta [K, V], their indices in the flattened [B * L]) -> values, each [K]."""


class Observation(NamedTuple):
    """Statistics of x_theta at every position."""

    probability: Float[Tensor, "B L"]
    """x_theta of the current token."""

    entropy: Float[Tensor, "B L"]
    """Entropy of x_theta, in nats."""

    top: Int[Tensor, "B L"]
    """The most likely token."""

    top_probability: Float[Tensor, "B L"]
    """x_theta of the most likely token."""


@final
class Prediction:
    """x_theta(z, t) after the processors. Nothing is computed before the first `read`.

    Results must not depend on the rest of the batch, but the last bits of a matrix product depend
    on its shape. So shapes are fixed: every batch has the same number of sequences, and the head
    gets positions of one sequence (B = 1), or tiles of one size, padded with zeros (B > 1).
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
        self.was_read = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        """Sequences for which a prediction was requested; if none, the network is not called."""
        self.is_finite = self.was_read.new_ones(())
        """Whether all that was read is finite; a tensor, so that no step waits for a GPU."""
        self._hidden: Tensor | None = None

    def read(self, where: Bool[Tensor, "B L"], function: RowFunction) -> tuple[Tensor, ...]:
        """Apply `function` to x_theta at the chosen positions; values are [B, L], 0 elsewhere.

        If no position is chosen, the network is not called.
        """
        self.was_read = self.was_read | where.any(-1)
        index = where.flatten().nonzero().squeeze(-1)
        if len(index):
            tiles = index.split(self._tile)
            parts = [function(*block) for tile in tiles for block in self._rows(tile)]
        else:
            parts = [function(torch.empty(0, self.vocab_size, device=index.device), index)]
        return tuple(self._scatter(index, torch.cat(v)) for v in zip(*parts, strict=True))

    def dense(self) -> Float[Tensor, "B L V"]:
        """Return all of x_theta at once, for reference steps and small vocabularies."""
        self.was_read = torch.ones_like(self.was_read)
        index = torch.arange(self.z.numel(), device=self.z.device)
        blocks = [rows for part in index.split(self._tile) for rows, _ in self._rows(part)]
        return torch.cat(blocks).unflatten(0, self.z.shape)

    def observe(self) -> Observation:
        """Compute statistics at all positions; costs a pass of the head, changes no sample."""
        z = self.z.flatten()

        def statistics(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            top_probability, top = rows.max(-1)
            entropy = torch.special.entr(rows).sum(-1)
            return rows.gather(-1, z[i, None]).squeeze(-1), entropy, top, top_probability

        return Observation(*self.read(torch.ones_like(self.z, dtype=torch.bool), statistics))

    @property
    def _tile(self) -> int:
        """Positions per pass of the head: a multiple of 32, so that vector loops have no tail."""
        largest = max(32, TILE_ENTRIES // self.vocab_size // 32 * 32)
        return min(largest, (self.z.numel() + 31) // 32 * 32)

    def _rows(self, index: Int[Tensor, " K"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of x_theta and their indices, block by block."""
        if self._hidden is None:
            self._hidden = self.network.hidden(self.z, self.t).flatten(0, 1)
        hidden = self._hidden[index]
        if len(self.z) > 1:
            hidden = torch.cat([hidden, hidden.new_zeros(self._tile - len(index), hidden.shape[1])])
        rows = self.network.distribution(hidden)
        # of a softmax either all entries are NaN or none
        self.is_finite = self.is_finite & rows[:, 0].isfinite().all()
        block = max(32, BLOCK_ENTRIES // self.vocab_size // 32 * 32)  # vector loops have no tail
        for part, indices in zip(rows.split(block), index.split(block), strict=False):
            for processor in self.processors:
                part = processor(part)  # before the padding is removed: sums depend on shapes
            yield part[: len(indices)], indices

    def _scatter(self, index: Tensor, values: Tensor) -> Tensor:
        zeros = values.new_zeros(self.z.numel())
        return zeros.scatter(0, index, values).unflatten(0, self.z.shape)
