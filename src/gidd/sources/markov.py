"""First-order Markov source: each token depends on the one before it."""

from __future__ import annotations

from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.sources.base import EntropyRate, Source, row_entropies, stationary_distribution


@final
class MarkovSource(Source):
    """The state is the token itself."""

    @classmethod
    def random(
        cls, num_tokens: int, concentration: float = 0.3, rng: np.random.Generator | int = 0
    ) -> Self:
        """Draw a source with Dirichlet rows; a smaller `concentration` is more predictable."""
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
        """Entropy of a sequence of `length` tokens, in nats."""
        distribution, total = self.initial, row_entropies(self.initial)
        for _ in range(length - 1):
            total = total + distribution @ row_entropies(self.transition)
            distribution = distribution @ self.transition
        return float(total)

    def entropy_rate(self) -> EntropyRate:
        """Entropy of the next token under the stationary distribution."""
        rate = stationary_distribution(self.transition) @ row_entropies(self.transition)
        return EntropyRate(float(rate), 0.0)
