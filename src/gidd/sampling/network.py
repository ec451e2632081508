"""The interface of a network to the samplers: features of a sequence, and x_theta from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, final

import torch
from torch import Tensor

from gidd.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def unusable_predictions() -> CheckpointError:
    """Return the error of a network that predicted NaN: its samples and scores mean nothing."""
    return CheckpointError(
        "the predictions of the model are not finite numbers: its weights are damaged or so "
        "large that they overflow. Use another checkpoint of the model."
    )


def require_finite_predictions(is_finite: bool) -> None:
    """Raise `unusable_predictions` unless predictions are finite."""
    if not is_finite:
        raise unusable_predictions()


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
        """Compute the features that enter the output head (one forward pass of the backbone).

        `valid` is False at padding, which is at the end of rows and can be any token; None: all
        rows are full. Features of valid tokens do not depend on padding.
        """
        ...

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Compute x_theta from features, position by position."""
        ...


@final
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
                "a FunctionNetwork does not accept padding (accepts_padding = False): its function "
                "has no argument for it. Call it with sequences of one length, and valid=None."
            )
        return self.x_theta(z, t)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Return the features, which are x_theta already."""
        return hidden


class _Row(NamedTuple):
    """Key of cached features, which depend on the tokens of a row and where its padding begins."""

    tokens: bytes
    num_valid: int


@final
class CachedFeatures:
    """A cache of features for networks that do not depend on t.

    Keeps the features of the last `capacity` sequences: no forward pass is needed if the step
    before changed nothing. Use it only for a network whose features do not depend on t: the
    network always gets t = 0.

    Threads can share it: a lock protects the cache, and forward passes run outside the lock. Two
    threads that need the same features at the same time both compute them.
    """

    def __init__(self, network: DenoisingNetwork, capacity: int = 64) -> None:
        self.network = network
        self.capacity = capacity
        self._cache: OrderedDict[_Row, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def accepts_padding(self) -> bool:
        """Whether the wrapped network accepts `valid`."""
        return bool(getattr(self.network, "accepts_padding", False))

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return cached features if all sequences are in the cache, else compute them."""
        num_valid = [z.shape[1]] * len(z) if valid is None else valid.sum(-1).tolist()
        rows = [row.tobytes() for row in z.cpu().numpy()]
        keys = [_Row(row, num) for row, num in zip(rows, num_valid, strict=True)]
        cached = self._find(keys)
        if cached is not None:
            return torch.stack(cached)
        zeros = torch.zeros_like(t)
        features = (
            self.network.hidden(z, zeros)  # networks that do not accept padding have two arguments
            if valid is None
            else self.network.hidden(z, zeros, valid)
        )
        self._add(keys, features)
        return features

    def distribution(self, hidden: Tensor) -> Tensor:
        """Compute x_theta with the wrapped network."""
        return self.network.distribution(hidden)

    @property
    def logit_head(self) -> Any:
        """The logit head of the wrapped network, if it has one."""
        return cast(Any, self.network).logit_head

    def _find(self, keys: list[_Row]) -> list[Tensor] | None:
        """Return the features of all rows, now the last used, or None if one is missing."""
        with self._lock:
            if not all(key in self._cache for key in keys):
                return None
            for key in keys:
                self._cache.move_to_end(key)
            return [self._cache[key] for key in keys]

    def _add(self, keys: list[_Row], features: Tensor) -> None:
        """Keep features of rows, and drop those that were not used for the longest time."""
        with self._lock:
            for key, row in zip(keys, features.unbind(), strict=True):
                self._cache[key] = row
                self._cache.move_to_end(key)
            while len(self._cache) > self.capacity:
                self._cache.popitem(last=False)


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
