"""`Batch`: the input of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Batch(NamedTuple):
    """The samples of one rank in a global batch, all of length L."""

    tokens: Int[Tensor, "B L"]
    """Token ids; short documents are padded at the end."""

    valid: Bool[Tensor, "B L"]
    """False at padding, which enters the loss but not the ELBO (App. E)."""

    sample_index: Int[Tensor, " B"]
    """Index of each sample, counted through all epochs; it seeds the noise of the sample."""

    def to(self, device: torch.device | str) -> Batch:
        """Copy to a device, asynchronously if the memory is pinned."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))

    def split(self, parts: int) -> list[Batch]:
        """Split into `parts` batches of nearly equal size, in order."""
        pieces = (part.tensor_split(parts) for part in self)
        return [Batch(*piece) for piece in zip(*pieces, strict=True)]

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory."""
        return Batch(*(part.pin_memory() for part in self))
