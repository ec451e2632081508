"""Markov sources: each token depends on the one before it, or on a hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.diffusion.schedules.mixture import require_stochastic
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


@final
@dataclass(frozen=True, eq=False)
class HiddenMarkovSource(Source):
    """K hidden states, each with its own distribution over tokens; dependencies are long-range."""

    emission: Tensor
    """Row k: distribution of the token that state k emits [K, V]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stochastic("source.emission", self.emission)

    @classmethod
    def random(
        cls,
        num_states: int,
        num_tokens: int,
        concentration: float = 0.3,
        rng: np.random.Generator | int = 0,
    ) -> Self:
        """Draw a source with Dirichlet rows; a smaller `concentration` is more predictable."""
        rng = np.random.default_rng(rng)
        initial = rng.dirichlet(np.ones(num_states))
        transition = rng.dirichlet(np.full(num_states, concentration), size=num_states)
        emission = rng.dirichlet(np.full(num_tokens, concentration), size=num_states)
        return cls(*map(torch.from_numpy, (initial, transition, emission)))

    @property
    def num_tokens(self) -> int:
        """Number of columns of the emission table."""
        return self.emission.shape[-1]

    def emission_of(self, token: Tensor) -> Tensor:
        """Column of the emission table; 0 for tokens beyond it."""
        emitted = self.emission.T[token.clamp_max(self.num_tokens - 1)]
        return emitted * (token < self.num_tokens)[..., None]

    def tokens_of(self, states: Tensor) -> Tensor:
        """Emission rows, averaged over the distribution of the state."""
        return states @ self.emission

    def entropy_rate(self, num_samples: int = 256, length: int = 512, seed: int = 0) -> EntropyRate:
        """Estimate by Monte Carlo: mean of -log p(x_i | x_<i) over stationary samples.

        Only the second half of each is used, where the conditional entropy has converged.
        """
        stationary = replace(self, initial=stationary_distribution(self.transition))
        sample = torch.arange(num_samples, device=self.initial.device)
        x = stationary.sample(seed, sample, length)
        nll = -stationary._forward(self.emission_of(x))[1][:, length // 2 :].mean(-1)
        return EntropyRate(float(nll.mean()), float(nll.std()) / math.sqrt(num_samples))
