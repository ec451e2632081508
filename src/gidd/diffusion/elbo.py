"""The terms of the GIDD ELBO (Theorem 3.7): the reference implementation, on [B, L, V] tensors.

    -log p(x) <= E[ weight * (kl + itakura_saito) ] + E[ reconstruction ] + prior

The integral over t runs over [eps, 1 - eps]; the two other terms are the cost outside that range.
The paper prints their sum C with the opposite sign (Eq. 15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import at
from gidd.diffusion.process import inflow_at, marginal, marginal_at, posterior
from gidd.diffusion.schedule import TINY, Distributions, MixingSchedule, Sequences, Times
from gidd.errors import ScheduleError

if TYPE_CHECKING:
    from jaxtyping import Float


class ElboTerms(NamedTuple):
    """Per-token terms of the bound; the mean of `weight * divergence` is the NELBO's integral."""

    weight: Float[Tensor, "B L"]
    """w_t(z_t, x), Eq. 13."""
    kl: Float[Tensor, "B L"]
    """D_KL(q_t(. | x) || q_t(. | x_theta)), Eq. 14."""
    itakura_saito: Float[Tensor, "B L"]
    """D_IS(q_t(z_t | x) || q_t(z_t | x_theta)), Eq. 14."""

    @property
    def divergence(self) -> Float[Tensor, "B L"]:
        """The sum of both divergences, in brackets in Eq. 14."""
        return self.kl + self.itakura_saito


def elbo_terms(
    schedule: MixingSchedule, t: Times, x: Sequences, z: Sequences, x_theta: Distributions
) -> ElboTerms:
    """Return the terms of Eq. 14 separately, so that a `Weighting` can replace the weight.

    `x_theta`, the denoiser's distribution given the noisy sequence `z`, is 0 on the mask.
    """
    pair = _marginals(schedule, t, x, x_theta)
    kl = kl_term(*pair).sum(-1)
    itakura_saito = itakura_saito_term(*(at(tensor, z) for tensor in pair))
    return ElboTerms(elbo_weight(schedule, t, x, z), kl, itakura_saito)


def elbo_weight(
    schedule: MixingSchedule, t: Times, x: Sequences, z: Sequences
) -> Float[Tensor, "B L"]:
    """w_t(z_t, x) = inflow(z_t) / q_t(z_t | x) (Eq. 13); 0 where q_t(z_t | x) = 0."""
    q_z = marginal_at(schedule, t, z, (z == x).to(t.dtype))
    return inflow_at(schedule, t, z) / q_z.clamp_min(TINY)


def full_itakura_saito(
    schedule: MixingSchedule, t: Times, x: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L"]:
    """Sum of D_IS over the vocabulary, a looser bound than D_IS at z_t alone (Remark H.6).

    It is infinite where x_theta > 0 on a token that noise cannot produce.
    """
    q, p, gap = _marginals(schedule, t, x, x_theta)
    divergence = torch.where((q == 0) & (p > 0), torch.inf, itakura_saito_term(q, p, gap))
    return torch.where(gap == 0, 0, divergence).sum(-1)


def reconstruction(
    schedule: MixingSchedule, t: Times, x: Sequences, z: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L"]:
    """-log p_theta(z_0 = x | z_t): the cost of the last step, from t = eps to 0 (C in Eq. 15).

    It replaces the integral over [0, eps]; for p_u > 0 and gamma = 1 it is of order sqrt(eps).
    """
    q_z = marginal_at(schedule, t, z, (z == x).to(t.dtype))
    p_z = marginal_at(schedule, t, z, at(x_theta, z))
    return _log(p_z) - _log(q_z) - _log(at(x_theta, x))


def prior_kl(
    schedule: MixingSchedule, t: Times, x: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L"]:
    """KL of the first step, from z_1 ~ p_1 to t = 1 - eps: the cost above the integral's range.

    `x_theta` is the prediction at time 1 for a sample of the prior, which has no cost itself.
    """
    return kl_term(*_marginals(schedule, t, x, x_theta)).sum(-1)


def step_kl(
    schedule: MixingSchedule, s: Times, t: Times, x: Sequences, z: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L"]:
    """D_KL(q(z_s | z_t, x) || p_theta(z_s | z_t)): one step of the discrete-time bound (App. H.5).

    Divided by t - s it tends to `weight * divergence` as s -> t.
    """
    clean = F.one_hot(x, schedule.vocab.size).to(t.dtype)
    q = posterior(schedule, s, t, z, clean)
    p = posterior(schedule, s, t, z, x_theta)
    return kl_term(q, p, q - p).sum(-1)


def mdm_loss(
    schedule: MixingSchedule, t: Times, x: Sequences, z: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L"]:
    """The masked-diffusion loss: -alpha'/(1 - alpha) times cross-entropy on masks (Eq. 2)."""
    mask_id = schedule.vocab.mask_id
    if mask_id is None:
        raise ScheduleError("mdm_loss needs a mask, but vocab.mask_id is None. Use elbo_terms.")
    hazard = schedule.inflow(t)[:, mask_id]  # -alpha'/alpha when pi_t = m
    weight = hazard * schedule.alpha(t) / schedule.beta_pi(t)[:, mask_id]
    return -weight[:, None] * (z == mask_id) * _log(at(x_theta, x))


def _marginals(
    schedule: MixingSchedule, t: Tensor, x: Tensor, x_theta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q = q_t(. | x), p = q_t(. | x_theta) and gap = q - p, more precise than by subtraction.

    gap = alpha (x - x_theta), where 1 - x_theta(x) is summed from the other tokens.
    """
    clean = F.one_hot(x, schedule.vocab.size).to(x_theta.dtype)
    elsewhere = (1 - clean) * x_theta
    gap = schedule.alpha(t)[:, None, None] * (clean * elsewhere.sum(-1, keepdim=True) - elsewhere)
    return marginal(schedule, t, clean), marginal(schedule, t, x_theta), gap


# Both divergences are of second order in d = q/p - 1. Where d is small, the first-order terms are
# cancelled analytically: float32 then keeps about six digits of every term instead of none.
_NEAR = 0.1


def kl_term(q: Tensor, p: Tensor, gap: Tensor) -> Tensor:
    """q log(q/p) - q + p, non-negative; its sum over tokens is D_KL, since q and p sum to 1.

    `gap` is q - p, passed because the caller can compute it without the rounding of a subtraction.
    """
    near, d, log_ratio = _near_and_far(q, p, gap)
    by_series = p * (d.square() - (1 + d) * _minus_log1p(d))
    return torch.where(near, by_series, q * log_ratio - gap)


def itakura_saito_term(q: Tensor, p: Tensor, gap: Tensor) -> Tensor:
    """D_IS(q || p) = q/p - log(q/p) - 1 (Theorem 3.7); `gap` is q - p."""
    near, d, log_ratio = _near_and_far(q, p, gap)
    return torch.where(near, _minus_log1p(d), log_ratio.expm1() - log_ratio)


def _near_and_far(q: Tensor, p: Tensor, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where d = q/p - 1 is small, d (0 elsewhere), and log(q/p) elsewhere (0 there).

    The zeros keep the gradient of the unused branch finite. Only p has a gradient in log(q/p).
    """
    near = gap.abs() < _NEAR * p
    d = torch.where(near, gap, 0) / torch.where(near, p, 1)
    far_q, far_p = (torch.where(near, 1, tensor).clamp_min(TINY) for tensor in (q, p))
    return near, d, -(far_p / far_q).log()


def _minus_log1p(d: Tensor) -> Tensor:
    """d - log(1 + d) for |d| <= 0.1, to full precision, with y = d / (2 + d).

    log(1 + d) = 2 artanh(y) = 2 (y + y^3/3 + y^5/5 + ...) and d - 2y = d y.
    """
    y = d / (2 + d)
    y2 = y.square()
    tail = 1 / 3 + y2 * (1 / 5 + y2 * (1 / 7 + y2 * (1 / 9 + y2 * (1 / 11 + y2 * (1 / 13)))))
    return d * y - 2 * y * y2 * tail


def _log(p: Tensor) -> Tensor:
    """Logarithm of a probability, finite at 0."""
    return p.clamp_min(TINY).log()
