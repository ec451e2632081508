"""The interface of a network to the samplers: features, and x_theta from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from gidd.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


UNUSABLE_PREDICTIONS = (
    "the predictions of the model are not finite numbers: its weights are damaged or so large that "
    "they overflow. Use another checkpoint of the model."
)


def require_finite_predictions(is_finite: bool) -> None:
    """Raise `CheckpointError` if a network predicted NaN: its samples and scores mean nothing."""
    if not is_finite:
        raise CheckpointError(UNUSABLE_PREDICTIONS)


class DenoisingNetwork(Protocol):
    """x_theta in two parts, so that the output head runs only at the positions that need it.

    Implemented by `gidd.models.Denoiser`; `FunctionNetwork` wraps any function. A network that
    computes rows with padding has `accepts_padding = True`; no other is called with `valid`.
    """

    def hidden(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        valid: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return the features that enter the output head: one forward pass of the backbone.

        `valid` is False at padding, which is at the end of rows and can be any token; None: all
        rows are full. Features of valid tokens do not depend on padding. A network that reads
        sequences in blocks has a further argument, `context`, and `keys_and_values`, as
        `gidd.models.Denoiser` has.
        """
        ...

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Return x_theta of features, computed position by position."""
        ...


class FunctionNetwork:
    """A network defined by a function for x_theta, such as an exact posterior."""

    accepts_padding = False

    def __init__(self, x_theta: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.x_theta = x_theta
        """(z [B, L], t [B]) -> [B, L, V]."""

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return x_theta(z, t) of rows without padding."""
        if valid is not None:
            raise ConfigError(
                "a FunctionNetwork does not accept padding (accepts_padding = False). "
                "Call it with sequences of one length, and valid=None."
            )
        return self.x_theta(z, t)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Return the features unchanged: they are x_theta already."""
        return hidden


class CachedFeatures:
    """A cache of features for networks that do not depend on t.

    Keeps the features of the last `capacity` sequences: no forward pass is needed if the step
    before changed nothing. The network always gets t = 0. Threads can share the cache.
    """

    def __init__(self, network: DenoisingNetwork, capacity: int = 64) -> None:
        self.network: Any = network
        self.capacity = capacity
        self._cache: OrderedDict[tuple[bytes, int, int], Tensor] = OrderedDict()
        """By the tokens of a row, where its padding begins, and the batch size."""
        self._lock = threading.Lock()  # forward passes run outside of it

    def hidden(
        self, z: Tensor, t: Tensor, valid: Tensor | None = None, context: Any = None
    ) -> Tensor:
        """Return cached features if all sequences are in the cache, else compute them.

        Those of blocks, which depend on what is before them, are not kept.
        """
        if context is not None:
            return self.network.hidden(z, torch.zeros_like(t), valid, context=context)
        num_valid = [z.shape[1]] * len(z) if valid is None else valid.sum(-1).tolist()
        rows = zip(z.cpu().numpy(), num_valid, strict=True)
        keys = [(row.tobytes(), num, len(z)) for row, num in rows]
        with self._lock:
            if all(key in self._cache for key in keys):
                for key in keys:
                    self._cache.move_to_end(key)
                return torch.stack([self._cache[key] for key in keys])
        # networks that do not accept padding have two arguments
        features = self.network.hidden(z, torch.zeros_like(t), *(() if valid is None else (valid,)))
        with self._lock:
            for key, row in zip(keys, features.unbind(), strict=True):
                self._cache[key] = row
                self._cache.move_to_end(key)
            while len(self._cache) > self.capacity:
                self._cache.popitem(last=False)
        return features

    def distribution(self, hidden: Tensor) -> Tensor:
        """Compute x_theta with the wrapped network."""
        return self.network.distribution(hidden)

    def keys_and_values(self, x: Tensor, context: Any) -> Tensor:
        """Compute the keys and values of a finished block with the wrapped network."""
        return self.network.keys_and_values(x, context)

    @property
    def accepts_padding(self) -> bool:
        """Whether the wrapped network accepts `valid`."""
        return bool(getattr(self.network, "accepts_padding", False))

    @property
    def accepts_context(self) -> bool:
        """Whether the wrapped network reads sequences in blocks."""
        return bool(getattr(self.network, "accepts_context", False))
