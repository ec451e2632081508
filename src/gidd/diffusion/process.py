"""The noise process of any schedule: marginals, noising, transitions, rates, the reverse step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.categorical import at, at_token, draw, draw_flat, flat_entries
from gidd.diffusion.schedule import TINY, Distributions, FlatNoise, MixingSchedule, Sequences, Times

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def marginal(schedule: MixingSchedule, t: Times, x_theta: Distributions) -> Float[Tensor, "B L V"]:
    """q_t(. | x_theta) = alpha_t x_theta + beta_t pi_t (Eq. 3); one-hot x_theta: q_t(. | x)."""
    return schedule.alpha(t)[:, None, None] * x_theta + schedule.beta_pi(t)[:, None, :]


def marginal_at(
    schedule: MixingSchedule, t: Times, z: Sequences, x_theta_at_z: Float[Tensor, "B L"]
) -> Float[Tensor, "B L"]:
    """q_t(z | x_theta) from x_theta(z) alone (Eq. 3); x_theta(z) = 1[z = x] gives q_t(z | x)."""
    return schedule.alpha(t)[:, None] * x_theta_at_z + noise_at(schedule, t, z)


def noise_at(schedule: MixingSchedule, t: Times, z: Sequences) -> Float[Tensor, "B L"]:
    """beta_t pi_t(z), the noise mass on token z; without rows [B, V] for flat noise."""
    flat = schedule.flat_beta_pi(t)
    return at_token(schedule.beta_pi(t), z) if flat is None else flat.at(z)


def inflow_at(schedule: MixingSchedule, t: Times, z: Sequences) -> Float[Tensor, "B L"]:
    """The rate at which mass enters token z; without rows [B, V] for flat noise."""
    flat = schedule.flat_inflow(t)
    return at_token(schedule.inflow(t), z) if flat is None else flat.at(z)


def noise(
    schedule: MixingSchedule, t: Times, x: Sequences, u: Int[Tensor, "B L"]
) -> Int[Tensor, "B L"]:
    """Draw z_t ~ q_t(. | x) (Eq. 3) with fixed-point uniforms `u` (`randomness.random_integers`).

    One draw from the row (alpha, beta_pi): the first keeps the token, each other is a new one.
    """
    flat, alpha = schedule.flat_beta_pi(t), schedule.alpha(t)
    if flat is None:
        choice = draw(torch.cat([alpha[:, None], schedule.beta_pi(t)], dim=-1), u)
    else:
        entries = flat_entries(alpha, flat.mask, flat.other)
        choice = draw_flat(entries, schedule.vocab.size, flat.mask_id, u)
    return torch.where(choice == 0, x, choice - 1)


def prior(schedule: MixingSchedule, like: Tensor) -> Float[Tensor, " V"]:
    """p_1 = pi_1, the distribution of tokens at t = 1, with the device and type of `like`."""
    return schedule.beta_pi(like.new_ones(1)).squeeze(0)


def sample_prior(
    schedule: MixingSchedule, u: Int[Tensor, "B L"], dtype: torch.dtype = torch.float32
) -> Int[Tensor, "B L"]:
    """Draw z_1 ~ p_1 with fixed-point uniforms `u`."""
    end = torch.ones(1, device=u.device, dtype=dtype)
    flat = schedule.flat_beta_pi(end)
    if flat is None:
        return draw(prior(schedule, end).expand(len(u), -1), u)
    entries = flat_entries(torch.zeros_like(end), flat.mask, flat.other)
    return draw_flat(entries, schedule.vocab.size, flat.mask_id, u) - 1


class Transition(NamedTuple):
    """q_{t|s}(z_t | z_s) = alpha 1[z_t = z_s] + beta_pi(z_t): keep the token or draw a new one."""

    alpha: Float[Tensor, " B"]
    beta_pi: Float[Tensor, "B V"]


def transition(schedule: MixingSchedule, s: Times, t: Times) -> Transition:
    """Conditional transition from time s to time t, s <= t, s < 1 (Prop. 3.3)."""
    alpha = schedule.alpha(t) / schedule.alpha(s)
    beta_pi = schedule.beta_pi(t) - alpha[:, None] * schedule.beta_pi(s)
    return Transition(alpha, beta_pi.clamp_min(0))  # 0 may be rounded to -1e-8


def transition_noise_at(
    schedule: MixingSchedule, s: Times, t: Times, z: Sequences
) -> Float[Tensor, "B L"]:
    """(beta pi)_{t|s}(z), the probability that noise between s and t produces z (Prop. 3.3)."""
    flat = flat_transition(schedule, s, t)
    if flat is None:
        return at_token(transition(schedule, s, t).beta_pi, z)
    return flat.at(z)


def flat_transition(schedule: MixingSchedule, s: Times, t: Times) -> FlatNoise | None:
    """(beta pi)_{t|s} of `transition` for flat noise, else None."""
    at_t, at_s = schedule.flat_beta_pi(t), schedule.flat_beta_pi(s)
    if at_t is None or at_s is None:
        return None
    alpha = schedule.alpha(t) / schedule.alpha(s)
    mask = (at_t.mask - alpha * at_s.mask).clamp_min(0)  # 0 may be rounded to -1e-8
    if at_t.other is None or at_s.other is None:
        return FlatNoise(at_t.mask_id, mask, None)
    return FlatNoise(at_t.mask_id, mask, (at_t.other - alpha * at_s.other).clamp_min(0))


def forward_rate(
    schedule: MixingSchedule, t: Times, z_from: Sequences, z_to: Sequences
) -> Float[Tensor, "B L"]:
    """R_t(z_from, z_to), the rate of jumping from one token to another (Lemma 3.6, Eq. 11)."""
    inflow = schedule.inflow(t)
    alpha_ratio = -inflow.sum(-1, keepdim=True)  # alpha'/alpha, Lemma H.5
    return alpha_ratio * (z_from == z_to) + at_token(inflow, z_to)


def backward_rates(
    schedule: MixingSchedule, t: Times, z: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L V"]:
    """Rates of the model's reverse chain from z to every token (Lemma H.3). Each row sums to 0."""
    inflow = schedule.inflow(t)
    q = marginal(schedule, t, x_theta)
    q_z = at(q, z)[..., None].clamp_min(TINY)
    # R_t(z', z) q_t(z' | x_theta) / q_t(z | x_theta) for z' != z: the diagonal of R_t is not used
    rates = at_token(inflow, z)[..., None] * q / q_z
    off_diagonal = rates.scatter(-1, z[..., None], 0.0)
    return off_diagonal.scatter(-1, z[..., None], -off_diagonal.sum(-1, keepdim=True))


def posterior(
    schedule: MixingSchedule, s: Times, t: Times, z: Sequences, x_theta: Distributions
) -> Float[Tensor, "B L V"]:
    """p_theta(z_s | z_t) (Eqs. 12 and 16), the distribution of a reverse step from t to s <= t.

    With a one-hot x_theta it is q(z_s | z_t, x). Rows where z has probability 0 at time t are 0.
    """
    step = transition(schedule, s, t)
    q_s = marginal(schedule, s, x_theta)
    q_t_at_z = marginal_at(schedule, t, z, at(x_theta, z))[..., None]
    redrawn = at_token(step.beta_pi, z)[..., None] * q_s
    kept = step.alpha[:, None, None] * at(q_s, z)[..., None]
    return redrawn.scatter_add(-1, z[..., None], kept) / q_t_at_z.clamp_min(TINY)
