"""Hidden-Markov text: a topic that wanders, and tokens that depend on the topic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.sources.base import EntropyRate, Source, require_stochastic, stationary_law


@final
@dataclass(frozen=True, eq=False)
class HiddenMarkovSource(Source):
    """K hidden states, each with its own law over tokens. Its text has long memory."""

    initial: Tensor
    """Law of the first state [K]."""

    transition: Tensor
    """Row k: law of the state that follows state k [K, K]."""

    emission: Tensor
    """Row k: law of the token that state k emits [K, V]."""

    def __post_init__(self) -> None:
        """Check that all three are distributions."""
        require_stochastic("initial", self.initial)
        require_stochastic("transition", self.transition)
        require_stochastic("emission", self.emission)

    @classmethod
    def random(
        cls,
        num_states: int,
        num_tokens: int,
        concentration: float = 0.3,
        rng: np.random.Generator | int = 0,
    ) -> Self:
        """A source with Dirichlet rows; the smaller `concentration`, the more predictable."""
        rng = np.random.default_rng(rng)
        initial = rng.dirichlet(np.ones(num_states))
        transition = rng.dirichlet(np.full(num_states, concentration), size=num_states)
        emission = rng.dirichlet(np.full(num_tokens, concentration), size=num_states)
        return cls(*map(torch.from_numpy, (initial, transition, emission)))

    @property
    def num_tokens(self) -> int:
        """Width of the emission table."""
        return self.emission.shape[-1]

    def emission_of(self, token: Tensor) -> Tensor:
        """Column of the emission table; zero for ids beyond it."""
        emitted = self.emission.T[token.clamp_max(self.num_tokens - 1)]
        return emitted * (token < self.num_tokens)[..., None]

    def tokens_of(self, states: Tensor) -> Tensor:
        """Emission rows, averaged over the law of the state."""
        return states @ self.emission

    def entropy_rate(self, num_samples: int = 256, length: int = 512, seed: int = 0) -> EntropyRate:
        """Monte Carlo: mean of -log p(x_i | x_<i) over the second half of stationary texts.

        The rate of a hidden-Markov source has no closed form. The first half of each text lets the
        conditional entropy settle; texts are independent, so their spread gives the error.
        """
        stationary = type(self)(stationary_law(self.transition), self.transition, self.emission)
        texts = torch.arange(num_samples, device=self.initial.device)
        x = stationary.sample(seed, texts, length)
        nll = -stationary._forward(self.emission_of(x))[1][:, length // 2 :].mean(-1)
        return EntropyRate(float(nll.mean()), float(nll.std()) / math.sqrt(num_samples))
