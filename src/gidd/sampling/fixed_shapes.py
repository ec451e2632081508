"""Read x_theta at selected positions with static shapes, to avoid host-device synchronization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.devices import positions, upload
from gidd.sampling.network import ForwardPass
from gidd.sampling.processors import Processor
from gidd.sampling.row_sampler import KernelSampler, RowSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


GPU_TILE_ENTRIES = 103_000_000
"""Maximum size of a [positions, V] tensor on a GPU: 2,048 positions for GPT-2's vocabulary."""

RowFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""(rows of x_theta [K, V], their indices in the flattened [B * L]) -> values, each [K, ...]."""


def tile_of(entries: int, vocab_size: int, num_positions: int) -> int:
    """Return positions per pass of the head, a multiple of 32: vector loops have no tail."""
    largest = max(32, entries // vocab_size // 32 * 32)
    return min(largest, (num_positions + 31) // 32 * 32)


SampleFunction = Callable[[RowSampler, Tensor], tuple[Tensor, ...]]
"""A `RowFunction` of tokens sampled from the rows."""

SampleRead = tuple[Callable[[Tensor], KernelSampler], SampleFunction]
"""From indices to a sampler of their rows, and the function of the samples."""


class FixedShapeReader:
    """Reads in tiles of one size; their number follows from the expected number of positions.

    The number of chosen positions stays on the device: the caller copies it with the results of the
    step, and repeats the step with a larger capacity if there were too many. Results do not depend
    on the capacity, since every tile has the same shape.
    """

    def __init__(
        self,
        forward: ForwardPass,
        z: Int[Tensor, "B L"],
        vocab_size: int,
        rows: Int[Tensor, " B"] | None,
        capacity: int | None,
    ) -> None:
        """Read for some rows of a forward pass; `capacity` is all positions by default."""
        self._forward, self._rows = forward, rows
        self._tile = tile_of(GPU_TILE_ENTRIES, vocab_size, z.numel())
        num = z.numel() if capacity is None else min(capacity, z.numel())
        self._size = max(1, -(-num // self._tile)) * self._tile
        self.num_read = torch.zeros((), dtype=torch.int64, device=z.device)
        """The largest number of positions of a read so far."""
        self.is_finite = torch.ones(len(z), dtype=torch.bool, device=z.device)
        """Whether all that was read of a sequence is finite."""

    @property
    def overflows(self) -> Bool[Tensor, ""]:
        """Whether a read chose more positions than fit."""
        return self.num_read > self._size

    def read(
        self,
        where: Bool[Tensor, "B L"],
        sets: Mapping[tuple[Processor, ...], Sequence[int]],
        of_rows: RowFunction,
        samples: SampleRead | None,
    ) -> tuple[Tensor, ...]:
        """Return values [B, L], 0 elsewhere.

        `sets` are the sequences of each different tuple of processors. Sequences without processors
        and guidance are sampled by a kernel if `samples` is given.
        """
        if len(sets) == 1:
            return self._read(where, next(iter(sets)), of_rows, samples)
        parts: list[tuple[Tensor, ...]] = []
        for processors, rows in sets.items():
            is_own = upload([row in rows for row in range(len(where))], torch.bool, where.device)
            parts.append(self._read(where & is_own[:, None], processors, of_rows, samples))
        # a position is 0 in all parts but one
        return tuple(reduce(torch.add, values) for values in zip(*parts, strict=True))

    def _read(
        self,
        where: Tensor,
        processors: tuple[Processor, ...],
        of_rows: RowFunction,
        samples: SampleRead | None,
    ) -> tuple[Tensor, ...]:
        index, place, number = _compact(where.flatten(), self._size)
        self.num_read = self.num_read.maximum(number)
        length, in_forward = where.shape[1], index
        if self._rows is not None:
            in_forward = self._rows[index // length] * length + index % length
        is_plain = not processors and self._forward.guidance is None
        if samples is not None and is_plain and hasattr(self._forward.network, "logit_head"):
            found = self._sample(samples, index, in_forward)
        else:
            found = self._apply(of_rows, index, in_forward, processors)

        def scatter(values: Tensor) -> Tensor:
            everywhere = values.new_zeros(where.numel() + 1, *values.shape[1:])
            return everywhere.index_copy(0, place, values)[:-1].unflatten(0, where.shape)

        failed, *values = map(scatter, found)
        self.is_finite = self.is_finite & ~failed.any(-1)
        return tuple(values)

    def _sample(self, read: SampleRead, index: Tensor, in_forward: Tensor) -> tuple[Tensor, ...]:
        """Sample by a kernel; return whether x_theta is NaN, then the values."""
        hidden = self._forward.features.flatten(0, 1)[in_forward]
        logits = cast(Any, self._forward.network).logit_head()
        sampler_of, function = read
        sampler = sampler_of(index)
        for start in range(0, len(index), self._tile):
            rows = slice(start, start + self._tile)
            sampler.fill(rows, logits(hidden[rows]))
        return sampler.top_probability.isnan(), *function(sampler, index)

    def _apply(
        self,
        function: RowFunction,
        index: Tensor,
        in_forward: Tensor,
        processors: tuple[Processor, ...],
    ) -> tuple[Tensor, ...]:
        """Compute rows of x_theta; return whether they are NaN, then the values."""
        forward, parts = self._forward, list[tuple[Tensor, ...]]()
        head, features = forward.network.distribution, forward.features.flatten(0, 1)
        for start in range(0, len(index), self._tile):
            tile = slice(start, start + self._tile)
            place = in_forward[tile]
            rows = head(features[place])
            if forward.guidance is not None:
                without = head(features[place + forward.z.numel()])
                rows = forward.guidance.combine(rows, without, place // forward.z.shape[1])
            for processor in processors:
                rows = processor(rows)
            # of a softmax either all entries are NaN or none
            parts.append((rows[:, 0].isnan(), *function(rows, index[tile])))
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))


def _compact(where: Bool[Tensor, " P"], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return `size` positions, the chosen ones first and in order: `nonzero` with a fixed size.

    Also where their results belong, P for positions that were not chosen, and the number of chosen
    positions; if it exceeds `size`, some are missing.
    """
    order = where.to(torch.uint8).argsort(descending=True, stable=True)[:size]
    if size > len(where):
        order = F.pad(order, (0, size - len(where)))
    number = where.sum()
    is_other = positions(size, where.device) >= number
    return order, order.masked_fill(is_other, len(where)), number
