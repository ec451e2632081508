"""x_theta of a batch, computed on first use and only at the positions that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.categorical import at
from gidd.sampling.choices import BatchChoices, with_tokens
from gidd.sampling.network import ForwardPass
from gidd.sampling.processors import Processor
from gidd.sampling.row_sampler import RowSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

TILE_ENTRIES = 6_500_000
"""Maximum size of a [positions, V] tensor: 128 positions for GPT-2's vocabulary."""

BLOCK_ENTRIES = 1 << 20
"""Entries that are processed together, so that they stay in a core's cache."""

RowFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""(rows of x_theta [K, V], their indices in the flattened [B * L]) -> values, each [K, ...]."""

SampleFunction = Callable[[RowSampler, Tensor], tuple[Tensor, ...]]
"""A `RowFunction` of tokens sampled from the rows."""


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


_Run = tuple[range, tuple[Processor, ...]]
"""Positions that follow each other in a read, and the processors of their rows."""


class Prediction:
    """x_theta(z, t) after guidance and processors. Nothing is computed before the first `read`.

    Results must not depend on the rest of the batch, but the last bits of a matrix product depend
    on its shape. So shapes are fixed: every batch has the same number of sequences, and the head
    gets positions of one sequence (B = 1), or tiles of one size, padded with zeros (B > 1).
    """

    def __init__(
        self,
        forward: ForwardPass,
        vocab_size: int,
        processors: Sequence[tuple[Processor, ...]] = (),
        *,
        rows: Int[Tensor, " B"] | None = None,
        num_rows: int | None = None,
        choices: BatchChoices | None = None,
    ) -> None:
        """Predict for some sequences of a forward pass: `rows`, by default all.

        Only the first `num_rows` of them are predicted: the others pad the batch. `processors` are
        the processors of each sequence.
        """
        self.vocab_size = vocab_size
        self.z = forward.z if rows is None else forward.z[rows]
        self.t = forward.t if rows is None else forward.t[rows]
        num_rows = len(self.z) if num_rows is None else num_rows
        tile = max(32, TILE_ENTRIES // vocab_size // 32 * 32)  # vector loops have no tail
        self._tile = min(tile, (self.z.numel() + 31) // 32 * 32)
        self.was_read = torch.zeros(len(self.z), dtype=torch.bool, device=self.z.device)
        """Sequences for which a prediction was requested; if none, the network is not called."""
        self.is_finite = ~self.was_read
        """Whether all that was read of a sequence is finite."""
        self._forward, self._rows, self._choices = forward, rows, choices
        self._is_predicted = None
        if num_rows < len(self.z):
            self._is_predicted = torch.arange(len(self.z), device=self.z.device) < num_rows
        self._sets: dict[tuple[Processor, ...], list[int]] = {}
        for row, own in enumerate(processors[:num_rows] or [()] * num_rows):
            self._sets.setdefault(own, []).append(row)

    def read(self, where: Bool[Tensor, "B L"], function: RowFunction) -> tuple[Tensor, ...]:
        """Apply `function` to x_theta at the chosen positions; values are [B, L], 0 elsewhere.

        If no position is chosen, the network is not called.
        """
        return self._read(where, function, self._choices)

    def read_samples(
        self,
        where: Bool[Tensor, "B L"],
        u: Int[Tensor, "B L"],
        function: SampleFunction,
        temperature: float = 1.0,
    ) -> tuple[Tensor, ...]:
        """As `read`, for a function of tokens sampled from the rows with fixed-point uniforms."""
        z, u = self.z.flatten(), u.flatten()

        def of_rows(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            return function(RowSampler(rows, z[i], u[i], temperature), i)

        return self._read(where, of_rows, self._choices)

    def dense(self) -> Float[Tensor, "B L V"]:
        """Return all of x_theta at once, for reference steps and small vocabularies."""
        return self.read(torch.ones_like(self.z, dtype=torch.bool), lambda rows, _: (rows,))[0]

    def observe(self) -> Observation:
        """Compute statistics at all positions; costs a pass of the head, changes no sample."""
        z = self.z.flatten()

        def statistics(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            top_probability, top = rows.max(-1)
            entropy = torch.special.entr(rows).sum(-1)
            return at(rows, z[i]), entropy, top, top_probability

        everywhere = torch.ones_like(self.z, dtype=torch.bool)
        return Observation(*self.read(everywhere, statistics))

    def with_choices(self, tokens: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """Return the result of a step to s = 0 with one of the options in every slot."""
        return tokens if self._choices is None else self._choices.finish(tokens, self._read)

    def _read(
        self,
        where: Bool[Tensor, "B L"],
        of_rows: RowFunction,
        choices: BatchChoices | None = None,
    ) -> tuple[Tensor, ...]:
        if choices is not None:
            of_rows = with_tokens(choices.draw(where, self._read), of_rows)
        if self._is_predicted is not None:  # without the padding of the batch
            where = where & self._is_predicted[:, None]
        self.was_read = self.was_read | where.any(-1)
        index, runs = self._order(where)
        if not len(index):
            parts = [of_rows(torch.empty(0, self.vocab_size, device=index.device), index)]
        else:
            features = self._forward.features
            parts = [of_rows(*block) for block in self._blocks(features, index, runs)]
        return tuple(self._scatter(index, torch.cat(v)) for v in zip(*parts, strict=True))

    def _order(self, where: Bool[Tensor, "B L"]) -> tuple[Int[Tensor, " K"], list[_Run]]:
        """Return the chosen positions, grouped by processors."""
        if len(self._sets) == 1:
            index = where.flatten().nonzero().squeeze(-1)
            return index, [(range(len(index)), next(iter(self._sets)))]
        parts, runs, start = list[Tensor](), list[_Run](), 0
        for processors, rows in self._sets.items():
            chosen = torch.zeros_like(where)
            chosen[rows] = where[rows]
            parts.append(chosen.flatten().nonzero().squeeze(-1))
            runs.append((range(start, start + len(parts[-1])), processors))
            start += len(parts[-1])
        return torch.cat(parts), runs

    def _blocks(
        self, features: Float[Tensor, "N L D"], index: Int[Tensor, " K"], runs: Sequence[_Run]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of x_theta and their indices, block by block."""
        block = max(32, BLOCK_ENTRIES // self.vocab_size // 32 * 32)  # vector loops have no tail
        for tile in range(0, len(index), self._tile):
            indices = index[tile : tile + self._tile]
            rows = self._head(features, indices)
            size = min(block, len(rows))
            for run, processors in runs:
                begin, end = max(run.start - tile, 0), min(run.stop - tile, len(indices))
                for start in range(begin, end, block):
                    stop = min(start + block, end)
                    if len(self.z) > 1:  # processors get one shape: sums depend on shapes
                        first = min(start, len(rows) - size)
                        part = rows[first : first + size]
                    else:
                        first, part = start, rows[start:stop]
                    for processor in processors:
                        part = processor(part)
                    yield part[start - first : stop - first], indices[start:stop]

    def _head(self, features: Tensor, index: Int[Tensor, " K"]) -> Float[Tensor, "T V"]:
        """Return x_theta at some positions, then x_theta of padding."""
        row, position = index // self.z.shape[1], index % self.z.shape[1]
        in_forward = row if self._rows is None else self._rows[row]
        rows = self._distribution(features[in_forward, position])
        if (guidance := self._forward.guidance) is not None:
            without = features[in_forward + len(self._forward.z), position]
            rows = guidance.combine(rows, self._distribution(without), in_forward)
        # of a softmax either all entries are NaN or none
        is_nan = ~rows[: len(index), 0].isfinite()
        failures = torch.zeros_like(row[:1]).expand(len(self.z)).index_add(0, row, is_nan.to(row))
        self.is_finite = self.is_finite & (failures == 0)
        return rows

    def _distribution(self, hidden: Float[Tensor, "K D"]) -> Float[Tensor, "T V"]:
        """Run the head on features and padding."""
        if len(self.z) > 1:
            padding = hidden.new_zeros(self._tile - len(hidden), hidden.shape[1])
            hidden = torch.cat([hidden, padding])
        return self._forward.network.distribution(hidden)

    def _scatter(self, index: Tensor, values: Tensor) -> Tensor:
        everywhere = values.new_zeros(self.z.numel(), *values.shape[1:])
        return everywhere.index_copy(0, index, values).unflatten(0, self.z.shape)
