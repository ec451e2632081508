"""The interface of a network to the samplers: features of a sequence, and x_theta from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

import torch
from torch import Tensor

from gidd.errors import CheckpointError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def require_finite_predictions(is_finite: bool) -> None:
    """Raise `CheckpointError` if a network predicted NaN: its samples and scores mean nothing."""
    if not is_finite:
        raise CheckpointError(
            "the predictions of the model are not finite numbers: its weights are damaged or so "
            "large that they overflow. Use another checkpoint of the model."
        )


class DenoisingNetwork(Protocol):
    """x_theta in two parts, so that the output head runs only at the positions that need it.

    Implemented by `gidd.models.Denoiser`; `FunctionNetwork` wraps any function.
    """

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """Compute the features that enter the output head (one forward pass of the backbone)."""
        ...

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Compute x_theta from features, position by position."""
        ...


@final
class FunctionNetwork:
    """A network defined by a function for x_theta, such as an exact posterior."""

    def __init__(self, x_theta: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.x_theta = x_theta
        """(z [B, L], t [B]) -> [B, L, V]."""

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """Return x_theta(z, t)."""
        return self.x_theta(z, t)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Return the features, which are x_theta already."""
        return hidden


@final
class CachedFeatures:
    """A cache of features for networks that do not depend on t.

    Keeps the features of the last `capacity` sequences, so that a step after one that changed
    nothing needs no forward pass. Use it only for a network whose features do not depend on t: the
    network always gets t = 0.
    """

    def __init__(self, network: DenoisingNetwork, capacity: int = 64) -> None:
        self.network = network
        self.capacity = capacity
        self._cache: OrderedDict[bytes, Tensor] = OrderedDict()

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """Return cached features if all sequences are in the cache, else compute them."""
        keys = [row.tobytes() for row in z.cpu().numpy()]
        if not all(key in self._cache for key in keys):
            features = self.network.hidden(z, torch.zeros_like(t))
            self._cache.update(zip(keys, features.unbind(), strict=True))
        for key in keys:
            self._cache.move_to_end(key)
        features = torch.stack([self._cache[key] for key in keys])
        while len(self._cache) > self.capacity:
            self._cache.popitem(last=False)
        return features

    def distribution(self, hidden: Tensor) -> Tensor:
        """Compute x_theta with the wrapped network."""
        return self.network.distribution(hidden)
