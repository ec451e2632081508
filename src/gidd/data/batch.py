"""`Batch`: the input of a training step."""

from __future__ import annotations

from collections.abc import Callable
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
    given: Bool[Tensor, "B L"] | None = None
    """The condition, e.g. a prompt: read by the network, never noised, not scored. None: none."""
    segments: Int[Tensor, "B L"] | None = None
    """Number of each token's document in a packed row; -1 at padding. None: a document per row."""

    @property
    def scored(self) -> Bool[Tensor, "B L"]:
        """The tokens of the NELBO: neither padding nor given."""
        return self.valid if self.given is None else self.valid & ~self.given

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a function applied to each tensor."""
        return Batch(*(None if part is None else function(part) for part in self))  # pyright: ignore[reportArgumentType]

    def to(self, device: torch.device | str) -> Batch:
        """Copy to a device, asynchronously if the memory is pinned."""
        return self.map(lambda part: part.to(device, non_blocking=True))

    def split(self, parts: int) -> list[Batch]:
        """Split into `parts` batches of nearly equal size, in order."""
        pieces = ([None] * parts if field is None else field.tensor_split(parts) for field in self)
        return [Batch(*piece) for piece in zip(*pieces, strict=True)]  # pyright: ignore[reportArgumentType]

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory."""
        return self.map(Tensor.pin_memory)
