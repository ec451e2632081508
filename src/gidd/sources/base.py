"""The interface of text-like sources: the optimal denoiser and the entropy are known exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import at_token, draw_by_cdf, fixed_cdf
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import Distributions, MixingSchedule, Sequences, Times
from gidd.diffusion.schedules.mixture import require_stochastic
from gidd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class EntropyRate(NamedTuple):
    """Entropy per token of an infinitely long sequence, in nats."""

    nats: float
    standard_error: float
    """0 if the rate has a closed form."""


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """A Markov chain over hidden states that emits one token per state.

    Its tokens are 0 .. num_tokens - 1; special tokens such as the mask come after them. Posteriors
    are distributions over the schedule's vocabulary, so they can replace a network's prediction.
    K is the number of hidden states.
    """

    initial: Float[Tensor, " K"]
    """Distribution of the first state."""
    transition: Float[Tensor, "K K"]
    """Row k: distribution of the state that follows state k."""

    def __post_init__(self) -> None:
        require_stochastic("source.initial", self.initial)
        require_stochastic("source.transition", self.transition)

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of different tokens that the source emits."""

    @abstractmethod
    def emission_of(self, token: Int[Tensor, "B L"]) -> Float[Tensor, "B L K"]:
        """Probability that each state emits `token`; 0 for tokens that the source never emits."""

    @abstractmethod
    def tokens_of(self, states: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        """Distribution of the emitted token, given the distribution of the state."""

    @abstractmethod
    def entropy_rate(self) -> EntropyRate:
        """Entropy per token of an infinitely long sequence."""

    def sample(self, seed: int, sample: Int[Tensor, " B"], length: int) -> Int[Tensor, "B L"]:
        """Draw the sequences with indices `sample` of the corpus defined by `seed`."""
        position = torch.arange(length, device=sample.device)
        u_state = random_integers(seed, Stream.SOURCE, 0, sample, position)
        u_token = random_integers(seed, Stream.SOURCE, 1, sample, position)
        next_state = fixed_cdf(self.transition)
        emission = fixed_cdf(self.tokens_of(torch.eye(len(self.initial)).to(self.initial)))
        cdf = fixed_cdf(self.initial.expand(len(sample), -1))
        tokens: list[Tensor] = []
        for i in range(length):
            state = draw_by_cdf(cdf, u_state[:, i : i + 1]).squeeze(-1)
            tokens.append(draw_by_cdf(emission[state], u_token[:, i : i + 1]))
            cdf = next_state[state]
        return torch.cat(tokens, dim=-1)

    def log_prob(self, x: Int[Tensor, "B L"]) -> Float[Tensor, " B"]:
        """Exact log-probability of complete sequences."""
        return self._forward(self.emission_of(x))[1].sum(-1)

    def leave_one_out(
        self, schedule: MixingSchedule, t: Times, z: Sequences, given: Tensor | None = None
    ) -> Float[Tensor, "B L V"]:
        """p(x_i | Z_t without z_i) at every position: the minimiser of the ELBO.

        Tokens at positions where `given` [L] is True are known to be clean.
        """
        evidence = self._evidence(schedule, t, z)
        if given is not None:
            evidence = torch.where(given[:, None], self.emission_of(z), evidence)
        before, _ = self._forward(evidence)
        states = before * self._backward(evidence)
        tokens = self.tokens_of(states / states.sum(-1, keepdim=True))
        if not tokens.isfinite().all():
            raise DataError(
                "the noisy tokens z have probability zero under the source and the schedule, so "
                "they have no posterior. Draw them with gidd.diffusion.process.noise."
            )
        return F.pad(tokens, (0, schedule.vocab.size - self.num_tokens))

    def posterior(self, schedule: MixingSchedule, t: Times, z: Sequences) -> Distributions:
        """p(x_i | Z_t): the ordinary posterior, which is also conditioned on z_i itself."""
        t = t.to(self.initial)
        kept = schedule.alpha(t)[:, None, None] * F.one_hot(z, schedule.vocab.size)
        # q_t(z_i | v) for every token v
        likelihood = kept + at_token(schedule.beta_pi(t), z)[..., None]
        joint = self.leave_one_out(schedule, t, z) * likelihood
        return joint / joint.sum(-1, keepdim=True)

    def _evidence(self, schedule: MixingSchedule, t: Tensor, z: Tensor) -> Tensor:
        """q_t(z_i | state) [B, L, K]: the emission probability of z_i, mixed with noise."""
        if schedule.vocab.size < self.num_tokens:
            num_tokens, got = self.num_tokens, schedule.vocab.size
            raise ConfigError(
                f"schedule.vocab.size must be at least the source's {num_tokens} tokens, "
                f"got {got}. Use Vocab({num_tokens + 1}, mask_id={num_tokens})."
            )
        t = t.to(self.initial)
        noise = at_token(schedule.beta_pi(t), z)
        return schedule.alpha(t)[:, None, None] * self.emission_of(z) + noise[..., None]

    def _forward(self, evidence: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution of each state given z_<i [B, L, K], and log p(z_i | z_<i) [B, L]."""
        predicted = self.initial.expand(len(evidence), -1)
        distributions: list[Tensor] = []
        log_norms: list[Tensor] = []
        for i in range(evidence.shape[1]):
            distributions.append(predicted)
            joint = predicted * evidence[:, i]
            norm = joint.sum(-1, keepdim=True)
            log_norms.append(norm.log())
            predicted = (joint / norm) @ self.transition
        return torch.stack(distributions, dim=1), torch.cat(log_norms, dim=-1)

    def _backward(self, evidence: Tensor) -> Tensor:
        """p(z_{>i} | state_i) up to a factor [B, L, K]."""
        message = torch.ones_like(evidence[:, 0])
        messages = [message]
        for i in range(evidence.shape[1] - 1, 0, -1):
            message = (message * evidence[:, i]) @ self.transition.T
            message = message / message.sum(-1, keepdim=True)
            messages.append(message)
        return torch.stack(messages[::-1], dim=1)


def stationary_distribution(transition: Float[Tensor, "K K"]) -> Float[Tensor, " K"]:
    """Return the distribution that a step of the chain leaves unchanged."""
    K = len(transition)
    unchanged = transition.T - torch.eye(K).to(transition)
    equations = torch.cat([unchanged, torch.ones_like(transition[:1])])
    right = torch.eye(K + 1)[:, -1:].to(transition)
    return torch.linalg.lstsq(equations, right).solution.squeeze(-1).clamp_min(0)


def row_entropies(rows: Float[Tensor, "... V"]) -> Float[Tensor, ...]:
    """Return the entropy of each distribution, in nats."""
    return torch.special.entr(rows).sum(-1)
