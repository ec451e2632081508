"""Exact results by enumeration: 3 tokens at 3 positions are 27 clean and 64 noisy sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.elbo import elbo_terms, itakura_saito_term, kl_term
from gidd.diffusion.process import marginal, marginal_at, posterior, prior
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import Nodes
from gidd.diffusion.weighting import Weighting
from gidd.sources.base import Source

if TYPE_CHECKING:
    from jaxtyping import Float, Int

DenoiserFunction = Callable[[Tensor, Tensor], Tensor]
"""A denoiser as a function: (z [B, L], t [B]) -> x_theta [B, L, V]."""


@final
@dataclass(frozen=True, eq=False)
class SmallWorld:
    """All sequences of `length` tokens from `source`, noised by `schedule`.

    In shapes, X is the number of clean sequences (num_tokens^L), Z of noisy ones (V^L).
    """

    source: Source
    schedule: MixingSchedule
    length: int
    given: tuple[int, ...] = ()
    """Positions of the condition, which are never noised and not scored."""

    @cached_property
    def clean(self) -> Int[Tensor, "X L"]:
        """All clean sequences."""
        return _all_sequences(self.source.num_tokens, self.length)

    @cached_property
    def clean_distribution(self) -> Float[Tensor, " X"]:
        """Probability of each clean sequence."""
        return self.source.log_prob(self.clean).exp()

    @cached_property
    def noisy(self) -> Int[Tensor, "Z L"]:
        """All noisy sequences."""
        return _all_sequences(self.schedule.vocab.size, self.length)

    @cached_property
    def data_distribution(self) -> Float[Tensor, " Z"]:
        """Probability of each sequence of `noisy` at t = 0, where there is no noise."""
        place = self.schedule.vocab.size ** torch.arange(self.length - 1, -1, -1)
        zeros = self.clean_distribution.new_zeros(len(self.noisy))
        return zeros.scatter(0, (self.clean * place).sum(-1), self.clean_distribution)

    @property
    def entropy(self) -> float:
        """Entropy of the clean sequences given the tokens at `given`, in nats."""
        condition, which = self.clean[:, list(self.given)], torch.zeros(len(self.clean)).long()
        for column in condition.unbind(-1):  # the number of each condition
            which = which * self.source.num_tokens + column
        of_condition = torch.zeros_like(self.clean_distribution)
        of_condition.index_add_(0, which, self.clean_distribution)
        joint, marginal = (torch.special.entr(p) for p in (self.clean_distribution, of_condition))
        return float(joint.sum() - marginal.sum())

    def times(self, t: float | Tensor) -> Float[Tensor, " Z"]:
        """The same time for each noisy sequence."""
        return self.clean_distribution.new_full((len(self.noisy),), float(t))

    def noising(self, t: float | Tensor) -> Float[Tensor, "X Z"]:
        """q_t(z | x) for each pair of sequences."""
        return self._token_noising(self.noisy, self.times(t)).prod(-1)

    def noisy_distribution(self, t: float | Tensor) -> Float[Tensor, " Z"]:
        """Distribution of Z_t."""
        return self.clean_distribution @ self.noising(t)

    def leave_one_out(self, z: Tensor, t: Tensor) -> Tensor:
        """p(x_i | Z without z_i) by enumeration; 0 where the rest of Z has probability 0."""
        q = self._token_noising(z, t)
        is_same = torch.eye(self.length, dtype=torch.bool)
        others = torch.where(is_same, 1, q[..., None, :]).prod(-1)  # [X, Z, L, L] -> [X, Z, L]
        return _normalised(self._token_mass(others))

    def posterior(self, z: Tensor, t: Tensor) -> Tensor:
        """p(x_i | Z) by enumeration; 0 where Z has probability 0."""
        return _normalised(self._joint(z, t))

    def minimiser(self, weighting: Weighting) -> DenoiserFunction:
        """Return the denoiser that minimises the loss with these weights.

        The loss is a Bregman divergence of the target from the prediction, so its minimiser is the
        mean of the targets, weighted by probability and loss weight.
        """

        def denoiser(z: Tensor, t: Tensor) -> Tensor:
            mass = self._joint(z, t)
            for v in range(self.source.num_tokens):
                mass[..., v] *= weighting(t, torch.full_like(z, v), z)
            return _normalised(mass)

        return denoiser

    def nelbo(self, denoiser: DenoiserFunction, nodes: Nodes | None = None) -> float:
        """Return the expected negative ELBO of a sequence, in nats.

        The integral over t uses `exact_nodes` unless other nodes are given.
        """
        total = 0.0
        z = self.noisy
        for node, node_weight in zip(*(nodes or exact_nodes()), strict=True):
            t = self.times(node)
            x_theta = denoiser(z, t)
            mass = self._joint(z, t)
            # the terms depend on the clean sequence only through its token v
            for v in range(self.source.num_tokens):
                terms = elbo_terms(self.schedule, t, torch.full_like(z, v), z, x_theta)
                cost = mass[..., v] * terms.weight * terms.divergence
                mass[:, list(self.given), v] = 0
                total += float(node_weight * cost[mass[..., v] > 0].sum())
        return total

    def reverse_distribution(
        self, denoiser: DenoiserFunction, times: Float[Tensor, " T+1"]
    ) -> Float[Tensor, " Z"]:
        """Distribution of the result of ancestral sampling at `times`, starting from the prior."""
        distribution = prior(self.schedule, self.clean_distribution)[self.noisy].prod(-1)
        for t, s in zip(times[:-1], times[1:], strict=True):
            distribution = distribution @ self.reverse_kernel(denoiser, s, t)
        return distribution

    def reverse_kernel(
        self, denoiser: DenoiserFunction, s: float | Tensor, t: float | Tensor
    ) -> Float[Tensor, "Z Z"]:
        """Kernel of a reverse step from t to s: each position by p_theta(z_s | z_t)."""
        times_s, times_t = self.times(s), self.times(t)
        x_theta = denoiser(self.noisy, times_t)
        step = posterior(self.schedule, times_s, times_t, self.noisy, x_theta)
        kernel = step.new_ones(len(self.noisy), len(self.noisy))
        for i in range(self.length):
            kernel = kernel * step[:, i, self.noisy[:, i]]
        return kernel

    def gibbs_kernel(self, denoiser: DenoiserFunction, t: float | Tensor, position: int) -> Tensor:
        """Kernel [Z, Z] that redraws one position from alpha x_theta + beta pi."""
        times = self.times(t)
        redraw = marginal(self.schedule, times, denoiser(self.noisy, times))[:, position]
        others = [i for i in range(self.length) if i != position]
        same = (self.noisy[:, None, others] == self.noisy[:, others]).all(-1)
        return redraw[:, self.noisy[:, position]] * same

    def _token_noising(self, z: Tensor, t: Tensor) -> Float[Tensor, "X Z L"]:
        """q_t(z_i | x_i) for each pair of a clean sequence and a row of z."""
        keeps = (self.clean[:, None, :] == z).to(self.clean_distribution)
        noising = marginal_at(self.schedule, t, z, keeps)
        noising[..., list(self.given)] = keeps[..., list(self.given)]
        return noising

    def _token_mass(self, evidence: Float[Tensor, "X Z L"]) -> Float[Tensor, "Z L V"]:
        """Sum of p(x) evidence(x, z, i) over the sequences with token v at i. L may be 1."""
        clean = F.one_hot(self.clean, self.schedule.vocab.size).to(evidence)
        weighted = self.clean_distribution[:, None, None] * evidence
        return torch.einsum("xzl,xlv->zlv", weighted.expand(-1, -1, self.length), clean)

    def _joint(self, z: Tensor, t: Tensor) -> Float[Tensor, "Z L V"]:
        """p(x_i = v, Z = z)."""
        return self._token_mass(self._token_noising(z, t).prod(-1, keepdim=True))


def unigram_nelbo(
    schedule: MixingSchedule, distribution: Float[Tensor, " V"], nodes: Nodes | None = None
) -> float:
    """Return the negative ELBO of a single token and its exact denoiser, in O(V) per node.

    Its leave-one-out posterior is its `distribution`. The sum is over all V^2 pairs of x and z:
    q_t(z | x) w_t(z, x) is inflow(z), and KL and IS differ from an absent token's at x alone.
    """
    total = 0.0
    for node, node_weight in zip(*(nodes or exact_nodes()), strict=True):
        t = node[None]
        alpha, noise, inflow = schedule.alpha(t), schedule.beta_pi(t)[0], schedule.inflow(t)[0]
        p = alpha * distribution + noise
        absent = (noise, p, -alpha * distribution)
        present = (alpha + noise, p, alpha * (1 - distribution))
        kl = kl_term(*absent).sum() - kl_term(*absent) + kl_term(*present)
        absent_is = torch.where(inflow > 0, inflow * itakura_saito_term(*absent), 0)
        present_is = inflow * itakura_saito_term(*present)
        mean = inflow.sum() * kl + absent_is.sum() - absent_is + present_is
        total += float(node_weight * (distribution * mean).sum())
    return total


def block_worlds(
    source: Source, schedule: MixingSchedule, length: int, block_length: int
) -> list[SmallWorld]:
    """Return the world of each block: its tokens, given the clean tokens before it.

    -log p(x) = -sum over blocks b of log p(x_b | x_<b) <= sum over blocks of their NELBOs, for any
    schedule and any denoiser of noisy blocks and clean tokens before them. At length 1 the sum is
    an autoregressive likelihood, at the length of the sequence the NELBO of Eq. 14.
    """
    return [
        SmallWorld(source, schedule, min(start + block_length, length), tuple(range(start)))
        for start in range(0, length, block_length)
    ]


def exact_nodes(num_nodes: int = 128, low: float = 0.0, high: float = 1.0) -> Nodes:
    """Double-exponential quadrature over [low, high]: nine digits, also with singular ends.

    t = 1 / (1 + exp(-pi sinh(v))), v evenly spaced; the trapezoidal rule in v.
    """
    v = torch.linspace(-4.3, 2.9, num_nodes, dtype=torch.float64)  # t from 6e-51 to 1 - 4e-13
    t = torch.sigmoid(torch.pi * v.sinh())
    width = v[1] - v[0]
    weight = width * torch.pi * v.cosh() * t * (1 - t)
    # there are no rates at t = 1; the error of this limit is below all tolerances
    return Nodes((low + (high - low) * t).clamp_max(1 - 1e-13), (high - low) * weight)


def total_variation(p: Float[Tensor, " Z"], q: Float[Tensor, " Z"]) -> float:
    """Return half the sum of absolute differences: 0 if equal, 1 if disjoint."""
    return float((p - q).abs().sum() / 2)


def _normalised(mass: Float[Tensor, "Z L V"]) -> Float[Tensor, "Z L V"]:
    total = mass.sum(-1, keepdim=True)
    return mass / total.masked_fill(total == 0, torch.inf)


def _all_sequences(num_tokens: int, length: int) -> Int[Tensor, "T L"]:
    tokens = torch.arange(num_tokens)
    return torch.cartesian_prod(*[tokens] * length).reshape(-1, length)
