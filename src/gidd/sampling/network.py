"""The interface of a network to the samplers: features, x_theta from them, and guidance."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.config.allowed import require_arguments
from gidd.common.devices import upload
from gidd.diffusion.schedule import TINY
from gidd.errors import CheckpointError, ConfigError
from gidd.sampling.ranges import GUIDANCE_SCALE

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
        """Compute the features that enter the output head (one forward pass of the backbone).

        `valid` is False at padding, which is at the end of rows and can be any token; None: all
        rows are full. Features of valid tokens do not depend on padding.
        """
        ...

    def distribution(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Compute x_theta from features, position by position."""
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
        """Return the features, which are x_theta already."""
        return hidden


class CachedFeatures:
    """A cache of features for networks that do not depend on t.

    Keeps the features of the last `capacity` sequences: no forward pass is needed if the step
    before changed nothing. The network always gets t = 0. Threads can share the cache.
    """

    def __init__(self, network: DenoisingNetwork, capacity: int = 64) -> None:
        self.network = network
        self.capacity = capacity
        self._cache: OrderedDict[tuple[bytes, int, int], Tensor] = OrderedDict()
        """By the tokens of a row, where its padding begins, and the batch size."""
        self._lock = threading.Lock()  # forward passes run outside of it

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return cached features if all sequences are in the cache, else compute them."""
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

    @property
    def accepts_padding(self) -> bool:
        """Whether the wrapped network accepts `valid`."""
        return bool(getattr(self.network, "accepts_padding", False))


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass of a batch, made when the first of its predictions is read."""

    network: DenoisingNetwork
    z: Int[Tensor, "B L"]
    t: Float[Tensor, " B"]
    valid: Bool[Tensor, "B L"] | None = None
    """False at padding; None if no sequence is padded."""
    guidance: BatchGuidance | None = None

    @cached_property
    def features(self) -> Float[Tensor, "N L D"]:
        """What enters the output head; with guidance also of all sequences without condition."""
        z, t, valid = self.z, self.t, self.valid
        if self.guidance is not None:
            tokens = self.guidance.tokens
            z, t = torch.cat([z, torch.where(tokens < 0, z, tokens)]), t.repeat(2)
            valid = None if valid is None else valid.repeat(2, 1)
        return self.network.hidden(z, t) if valid is None else self.network.hidden(z, t, valid)


@dataclass(frozen=True)
class Guidance:
    """How strongly a request follows its condition, and its sequence without the condition."""

    scale: float
    """w of `guide`; 1 is no guidance."""
    tokens: tuple[int | None, ...]
    """One for each token of the request: what replaces a token of the condition, such as a mask;
    None where the sequence has its own token, as at blanks."""

    def __post_init__(self) -> None:
        require_arguments(guidance_scale=(self.scale, GUIDANCE_SCALE))

    def first(self, num: int) -> Guidance:
        """Return the guidance of the first `num` tokens."""
        return replace(self, tokens=self.tokens[:num])


def guide(
    conditional: Float[Tensor, "K V"],
    unconditional: Float[Tensor, "K V"],
    scale: Float[Tensor, "K 1"],
) -> Float[Tensor, "K V"]:
    """Return p_c^w p_u^(1 - w), normalised, for x_theta with (c) and without (u) the condition.

    In logits it is u + w (c - u). A token that one of them excludes stays excluded, unless its
    exponent is 0, or negative: then p_u is at least `TINY`.
    """
    is_excluded = (conditional == 0) & (scale > 0) | (unconditional == 0) & (scale < 1)
    log_c, log_u = conditional.clamp_min(TINY).log(), unconditional.clamp_min(TINY).log()
    return (log_u + scale * (log_c - log_u)).masked_fill(is_excluded, -torch.inf).softmax(-1)


class BatchGuidance(NamedTuple):
    """The guidance of a batch."""

    tokens: Int[Tensor, "B L"]
    """`Guidance.tokens`, -1 for None and at padding."""
    scale: Float[Tensor, " B"]

    @classmethod
    def of(cls, guidances: Sequence[Guidance], length: int, device: torch.device) -> Self:
        """Take the guidance of each sequence of a batch with a padded length."""
        rows = [[-1 if v is None else v for v in guidance.tokens] for guidance in guidances]
        tokens = [row + [-1] * (length - len(row)) for row in rows]
        scales = [guidance.scale for guidance in guidances]
        return cls(upload(tokens, torch.int64, device), upload(scales, torch.float32, device))

    def rows(self, index: Int[Tensor, " K"]) -> BatchGuidance:
        """Select sequences."""
        return BatchGuidance(self.tokens[index], self.scale[index])

    def combine(
        self,
        conditional: Float[Tensor, "T V"],
        unconditional: Float[Tensor, "T V"],
        sequence: Int[Tensor, " K"],
    ) -> Float[Tensor, "T V"]:
        """Guide rows of x_theta, given the sequence of each; those behind are padding."""
        scale = F.pad(self.scale[sequence], (0, len(conditional) - len(sequence)), value=1.0)
        return guide(conditional, unconditional, scale[:, None])
