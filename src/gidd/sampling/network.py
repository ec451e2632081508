"""What a sampler asks of a network: features of a noisy sequence, and x_theta from features."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class DenoisingNetwork(Protocol):
    """x_theta in two parts, so that the vocabulary head runs only where its answer matters.

    `gidd.models.Denoiser` is one; `FunctionNetwork` makes one of any function.
    """

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The features that go into the head."""
        ...

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """x_theta from features, position by position."""
        ...


@final
class FunctionNetwork:
    """A network whose features are x_theta itself: an exact posterior, or any other function."""

    def __init__(self, x_theta: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.x_theta = x_theta
        """(z [B, L], t [B]) -> [B, L, V]."""

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """x_theta(z, t)."""
        return self.x_theta(z, t)

    def distribution(self, hidden: Tensor) -> Tensor:
        """What it was given."""
        return hidden


@final
class CachedFeatures:
    """A network that ignores the time: while a sequence's tokens stay, so do its features.

    It remembers the features of the last `capacity` sequences, so that a step that changed nothing
    is followed by one that costs no network call. Give it only to a network whose features do not
    depend on t; it is told t = 0 always.
    """

    def __init__(self, network: DenoisingNetwork, capacity: int = 64) -> None:
        self.network = network
        self.capacity = capacity
        self._memory: OrderedDict[bytes, Tensor] = OrderedDict()

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """Remembered features if all sequences have been seen lately, else new ones."""
        keys = [row.tobytes() for row in z.cpu().numpy()]
        if not all(key in self._memory for key in keys):
            features = self.network.hidden(z, torch.zeros_like(t))
            self._memory.update(zip(keys, features.unbind(), strict=True))
        for key in keys:
            self._memory.move_to_end(key)
        features = torch.stack([self._memory[key] for key in keys])
        while len(self._memory) > self.capacity:
            self._memory.popitem(last=False)
        return features

    def distribution(self, hidden: Tensor) -> Tensor:
        """The network's own."""
        return self.network.distribution(hidden)
