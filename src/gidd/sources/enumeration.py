"""Small worlds, counted out: every clean text, every noisy text, every probability exact.

With three tokens and three positions there are 27 clean and 64 noisy texts. Bounds, minimisers and
the law of a whole reverse chain can then be computed without sampling anything.
"""

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
"""(z [B, L], t [B]) -> x_theta [B, L, V]."""


@final
@dataclass(frozen=True, eq=False)
class SmallWorld:
    """All texts of `length` tokens from `source`, noised by `schedule`.

    Z counts the noisy texts (V^L of them), X the clean ones (num_tokens^L).
    """

    source: Source
    schedule: MixingSchedule
    length: int

    @cached_property
    def clean(self) -> Int[Tensor, "X L"]:
        """Every clean text."""
        return _all_texts(self.source.num_tokens, self.length)

    @cached_property
    def clean_law(self) -> Float[Tensor, " X"]:
        """Probability of every clean text."""
        return self.source.log_prob(self.clean).exp()

    @cached_property
    def noisy(self) -> Int[Tensor, "Z L"]:
        """Every noisy text."""
        return _all_texts(self.schedule.vocab.size, self.length)

    @cached_property
    def data_law(self) -> Float[Tensor, " Z"]:
        """Probability of every noisy text at t = 0, where there is no noise."""
        place = self.schedule.vocab.size ** torch.arange(self.length - 1, -1, -1)
        law = self.clean_law.new_zeros(len(self.noisy))
        return law.scatter(0, (self.clean * place).sum(-1), self.clean_law)

    @property
    def entropy(self) -> float:
        """Entropy of the clean texts, in nats."""
        return float(torch.special.entr(self.clean_law).sum())

    def times(self, t: float | Tensor) -> Float[Tensor, " Z"]:
        """The same time for every noisy text."""
        return self.clean_law.new_full((len(self.noisy),), float(t))

    def noising(self, t: float | Tensor) -> Float[Tensor, "X Z"]:
        """q_t(z | x) for every pair of texts."""
        return self._token_noising(self.noisy, self.times(t)).prod(-1)

    def noisy_law(self, t: float | Tensor) -> Float[Tensor, " Z"]:
        """Law of Z_t."""
        return self.clean_law @ self.noising(t)

    def leave_one_out(self, z: Tensor, t: Tensor) -> Tensor:
        """p(x_i | Z without z_i), counted out; 0 where the rest of Z is impossible."""
        q = self._token_noising(z, t)
        own = torch.eye(self.length, dtype=torch.bool)
        others = torch.where(own, 1, q[..., None, :]).prod(-1)  # [X, Z, L, L] -> [X, Z, L]
        return _normalised(self._token_mass(others))

    def posterior(self, z: Tensor, t: Tensor) -> Tensor:
        """p(x_i | Z), counted out; 0 where Z is impossible."""
        q = self._token_noising(z, t)
        return _normalised(self._token_mass(q.prod(-1, keepdim=True)))

    def minimiser(self, weighting: Weighting) -> DenoiserFunction:
        """The denoiser at which the loss with these weights is smallest, for every noisy text.

        The loss is a Bregman divergence of the target from the prediction, so its minimiser is the
        mean of the targets, each with its probability and its weight.
        """

        def denoiser(z: Tensor, t: Tensor) -> Tensor:
            mass = self._token_mass(self._token_noising(z, t).prod(-1, keepdim=True))
            weights = [weighting(t, torch.full_like(z, v), z) for v in self._tokens]
            mass[..., self._tokens] *= torch.stack(weights, dim=-1)
            return _normalised(mass)

        return denoiser

    def nelbo(self, denoiser: DenoiserFunction, nodes: Nodes | None = None) -> float:
        """The negative ELBO of a whole text, averaged over all texts and all noise, in nats.

        Integrated over t by `exact_nodes` unless another rule is to be judged.
        """
        nodes = nodes or exact_nodes()
        total = 0.0
        z = self.noisy
        for node, node_weight in zip(*nodes, strict=True):
            t = self.times(node)
            x_theta = denoiser(z, t)
            mass = self._token_mass(self._token_noising(z, t).prod(-1, keepdim=True))
            for v in self._tokens:  # a token's terms depend on its own clean token alone
                terms = elbo_terms(self.schedule, t, torch.full_like(z, v), z, x_theta)
                cost = mass[..., v] * terms.weight * terms.divergence
                total += float(node_weight * cost[mass[..., v] > 0].sum())
        return total

    def reverse_law(
        self, denoiser: DenoiserFunction, mesh: Float[Tensor, " T+1"]
    ) -> Float[Tensor, " Z"]:
        """Law of the text that ancestral sampling on `mesh` ends with, from the prior on."""
        law = prior(self.schedule, self.clean_law)[self.noisy].prod(-1)
        for t, s in zip(mesh[:-1], mesh[1:], strict=True):
            law = law @ self.reverse_kernel(denoiser, s, t)
        return law

    def reverse_kernel(
        self, denoiser: DenoiserFunction, s: float | Tensor, t: float | Tensor
    ) -> Float[Tensor, "Z Z"]:
        """One reverse step from t to s: all positions at once, each by p_theta(z_s | z_t)."""
        times_s, times_t = self.times(s), self.times(t)
        x_theta = denoiser(self.noisy, times_t)
        step = posterior(self.schedule, times_s, times_t, self.noisy, x_theta)
        kernel = torch.ones_like(self.clean_law[0]).expand(len(self.noisy), len(self.noisy))
        for i in range(self.length):
            kernel = kernel * step[:, i, self.noisy[:, i]]
        return kernel

    def gibbs_kernel(self, denoiser: DenoiserFunction, t: float | Tensor, position: int) -> Tensor:
        """Redraw one position from alpha x_theta + beta pi, keep all others [Z, Z]."""
        times = self.times(t)
        redraw = marginal(self.schedule, times, denoiser(self.noisy, times))[:, position]
        others = [i for i in range(self.length) if i != position]
        same = (self.noisy[:, None, others] == self.noisy[:, others]).all(-1)
        return redraw[:, self.noisy[:, position]] * same

    def _token_noising(self, z: Tensor, t: Tensor) -> Float[Tensor, "X Z L"]:
        """q_t(z_i | x_i) for every clean text beside every z."""
        keeps = (self.clean[:, None, :] == z).to(self.clean_law)
        return marginal_at(self.schedule, t, z, keeps)

    def _token_mass(self, evidence: Float[Tensor, "X Z L"]) -> Float[Tensor, "Z L V"]:
        """Sum of p(x) evidence(x, z, i) over the texts whose token at i is v. L may be 1."""
        clean = F.one_hot(self.clean, self.schedule.vocab.size).to(evidence)
        weighted = self.clean_law[:, None, None] * evidence
        return torch.einsum("xzl,xlv->zlv", weighted.expand(-1, -1, self.length), clean)

    @property
    def _tokens(self) -> list[int]:
        return list(range(self.source.num_tokens))


def unigram_nelbo(
    schedule: MixingSchedule, law: Float[Tensor, " V"], nodes: Nodes | None = None
) -> float:
    """The negative ELBO of one token with law `law` and its exact denoiser, in O(V) a node.

    The leave-one-out posterior of a lone token is `law` itself, whatever the noise shows. All V^2
    pairs of x and z are counted: q_t(z | x) w_t(z, x) is inflow(z), and KL and IS differ from those
    of an absent token at x alone.
    """
    total = 0.0
    for node, node_weight in zip(*(nodes or exact_nodes()), strict=True):
        t = node[None]
        alpha, noise, inflow = schedule.alpha(t), schedule.beta_pi(t)[0], schedule.inflow(t)[0]
        p = alpha * law + noise
        absent = (noise, p, -alpha * law)
        present = (alpha + noise, p, alpha * (1 - law))
        kl = kl_term(*absent).sum() - kl_term(*absent) + kl_term(*present)
        absent_is = torch.where(inflow > 0, inflow * itakura_saito_term(*absent), 0)
        present_is = inflow * itakura_saito_term(*present)
        mean = inflow.sum() * kl + absent_is.sum() - absent_is + present_is
        total += float(node_weight * (law * mean).sum())
    return total


def exact_nodes(num_nodes: int = 128, low: float = 0.0, high: float = 1.0) -> Nodes:
    """Double-exponential quadrature over [low, high]: nine digits, however the ends may grow.

    t = 1 / (1 + exp(-pi sinh(v))), v evenly spaced; the trapezoidal rule in v.
    """
    v = torch.linspace(-4.3, 2.9, num_nodes, dtype=torch.float64)  # t from 6e-51 to 1 - 4e-13
    t = torch.sigmoid(torch.pi * v.sinh())
    width = v[1] - v[0]
    weight = width * torch.pi * v.cosh() * t * (1 - t)
    # t = 1 itself is not a time at which rates exist; what lies above is below all tolerances
    return Nodes((low + (high - low) * t).clamp_max(1 - 1e-13), (high - low) * weight)


def total_variation(p: Float[Tensor, " Z"], q: Float[Tensor, " Z"]) -> float:
    """Half the sum of absolute differences: 0 for equal laws, 1 for disjoint ones."""
    return float((p - q).abs().sum() / 2)


def _normalised(mass: Float[Tensor, "Z L V"]) -> Float[Tensor, "Z L V"]:
    total = mass.sum(-1, keepdim=True)
    return mass / total.masked_fill(total == 0, torch.inf)


def _all_texts(num_ids: int, length: int) -> Int[Tensor, "T L"]:
    ids = torch.arange(num_ids)
    return torch.cartesian_prod(*[ids] * length).reshape(-1, length)
