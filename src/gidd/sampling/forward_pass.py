"""A forward pass of the network that sequences with different steps share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

from torch import Tensor

from gidd.sampling.network import DenoisingNetwork

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@final
@dataclass(frozen=True)
class ForwardPass:
    """A forward pass of the network on a batch, made when its features are first needed.

    Sequences with different steps share it: the first prediction that is read computes the features
    of all of them.
    """

    network: DenoisingNetwork
    z: Int[Tensor, "B L"]
    t: Float[Tensor, " B"]

    valid: Bool[Tensor, "B L"] | None = None
    """False at padding; None if no sequence is padded."""

    @cached_property
    def features(self) -> Float[Tensor, "B L D"]:
        """What enters the output head."""
        if self.valid is None:
            return self.network.hidden(self.z, self.t)
        return self.network.hidden(self.z, self.t, self.valid)
