"""First-order Markov text: each token depends on the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.sources.base import (
    EntropyRate,
    Source,
    require_stochastic,
    row_entropies,
    stationary_law,
)


@final
@dataclass(frozen=True, eq=False)
class MarkovSource(Source):
    """The state is the token itself."""

    initial: Tensor
    """Law of the first token [V]."""

    transition: Tensor
    """Row v: law of the token that follows v [V, V]."""

    def __post_init__(self) -> None:
        """Check that both are distributions."""
        require_stochastic("initial", self.initial)
        require_stochastic("transition", self.transition)

    @classmethod
    def random(
        cls, num_tokens: int, concentration: float = 0.3, rng: np.random.Generator | int = 0
    ) -> Self:
        """A source with Dirichlet rows; the smaller `concentration`, the more predictable."""
        rng = np.random.default_rng(rng)
        initial = rng.dirichlet(np.ones(num_tokens))
        transition = rng.dirichlet(np.full(num_tokens, concentration), size=num_tokens)
        return cls(torch.from_numpy(initial), torch.from_numpy(transition))

    @property
    def num_tokens(self) -> int:
        """One token per state."""
        return len(self.initial)

    def emission_of(self, token: Tensor) -> Tensor:
        """1 for the state that is the token."""
        states = torch.arange(self.num_tokens, device=token.device)
        return (token[..., None] == states).to(self.initial)

    def tokens_of(self, states: Tensor) -> Tensor:
        """The state is the token."""
        return states

    def entropy(self, length: int) -> float:
        """Entropy of a whole text of `length` tokens, in nats."""
        law, total = self.initial, row_entropies(self.initial)
        for _ in range(length - 1):
            total = total + law @ row_entropies(self.transition)
            law = law @ self.transition
        return float(total)

    def entropy_rate(self) -> EntropyRate:
        """Entropy of the next token under the stationary law."""
        rate = stationary_law(self.transition) @ row_entropies(self.transition)
        return EntropyRate(float(rate), 0.0)
