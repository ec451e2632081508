"""What the trainer sees of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Batch(NamedTuple):
    """Texts of one length, as many as this rank has of the global batch."""

    tokens: Int[Tensor, "B L"]
    """Ids; short texts are filled with the padding id."""

    valid: Bool[Tensor, "B L"]
    """True where a token is text. Padding enters the loss but not the ELBO (App. E)."""

    sample_index: Int[Tensor, " B"]
    """Number of each sample, counted through all epochs: the address of its noise."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; the copy overlaps with work there if memory is pinned."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))

    def split(self, parts: int) -> list[Batch]:
        """The same samples in so many batches of nearly one size, in order."""
        pieces = (part.tensor_split(parts) for part in self)
        return [Batch(*piece) for piece in zip(*pieces, strict=True)]

    def pinned(self) -> Batch:
        """The same batch in page-locked memory."""
        return Batch(*(part.pin_memory() for part in self))
