"""The history of a sequence: every edit and, optionally, every state with its predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Edit(NamedTuple):
    """One token replaced by another."""

    step_index: int
    """Index in the plan of the step that made the edit."""

    step: str
    """Name of that step or corrector."""

    time: float
    """Time s at the end of that step."""

    position: int
    old: int
    new: int

    probability: float
    """x_theta of the new token when it was drawn; 0 if it was not drawn from x_theta. Of the
    corrector `posterior`, the posterior probability."""


class Frame(NamedTuple):
    """A sequence before one step, with the network's prediction at every position."""

    step_index: int
    step: str
    time: float
    tokens: Int[Tensor, " L"]

    probability: Float[Tensor, " L"]
    """x_theta of each current token: the network's confidence in it."""

    entropy: Float[Tensor, " L"]
    """Entropy of x_theta at each position, in nats."""

    top: Int[Tensor, " L"]
    """Most likely token at each position."""

    top_probability: Float[Tensor, " L"]

    def self_accuracy(self, free: Bool[Tensor, " L"]) -> float:
        """Fraction of free tokens that are the most likely ones (Sec. 5.4); 1 if none is free."""
        is_top = (self.probability >= self.top_probability)[free]
        return float(is_top.cpu().double().mean()) if len(is_top) else 1.0

    def mean_entropy(self, free: Bool[Tensor, " L"]) -> float:
        """Mean entropy of x_theta at free positions, in nats; 0 if none is free."""
        entropy = self.entropy[free]
        return float(entropy.cpu().double().mean()) if len(entropy) else 0.0
