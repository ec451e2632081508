"""Chosen positions of a batch in fixed shapes, without waiting for a GPU to know their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.devices import positions

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Compacted(NamedTuple):
    """The first K chosen positions, then others."""

    position: Int[Tensor, " K"]
    """Positions to compute."""

    place: Int[Tensor, " K"]
    """Where results belong; one behind the end, P, for positions that were not chosen."""

    number: Int[Tensor, ""]
    """Number of chosen positions; if it exceeds K, some are missing."""

    def scatter(self, values: Tensor, length: int) -> Tensor:
        """Return values at their positions [length, ...], 0 elsewhere."""
        everywhere = values.new_zeros(length + 1, *values.shape[1:])
        return everywhere.index_copy(0, self.place, values)[:-1]


def compact(where: Bool[Tensor, " P"], size: int) -> Compacted:
    """Return `size` positions, the chosen ones first and in order; as `nonzero`, with a fixed size.

    A sort, because it works on every device.
    """
    order = where.to(torch.uint8).argsort(descending=True, stable=True)[:size]
    if size > len(where):
        order = F.pad(order, (0, size - len(where)))
    number = where.sum()
    is_other = positions(size, where.device) >= number
    return Compacted(order, order.masked_fill(is_other, len(where)), number)
