"""Ancestral sampling with the factorised reverse step; reads x_theta only where needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

import torch
from torch import Tensor

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.categorical import happens
from gidd.diffusion.process import noise, noise_at, transition_noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.sampling.predict import Predict
from gidd.sampling.ranges import PROBABILITY
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_RENOISE = PROBABILITY._replace(fix="0 is the ancestral sampler.")
FROM_X_THETA = -1
"""Placeholder for a token that is still to be drawn from x_theta."""


def redraw_probability(arrived: Float[Tensor, ...], q_t: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Compute r, the probability that a reverse step redraws a token (Eq. 16, factorised).

        p_theta(z_s | z_t) = (1 - r) 1[z_s = z_t] + r q_s(z_s | x_theta)
        r = (beta pi)_{t|s}(z_t) / q_t(z_t | x_theta)

    `arrived` is (beta pi)_{t|s}(z_t), the probability that noise between s and t produced z_t.
    """
    return (arrived / q_t.clamp_min(TINY)).clamp_max(1)


def ancestral(
    schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
) -> State:
    """Draw z_s ~ p_theta(z_s | z_t) (Eq. 16); the distribution of `process.posterior`.

    r is largest for x_theta(z_t) = 0, so a token that is kept even then is kept for any x_theta.
    The head runs only at the other positions, about as many as change. A mask has x_theta(z_t) = 0,
    so its x_theta is read only if it is replaced by a token drawn from x_theta. If no position
    needs x_theta, the network is not called.
    """
    return reverse_step(schedule, s, t, state, predict)


def reverse_step(
    schedule: MixingSchedule,
    s: Times,
    t: Times,
    state: State,
    predict: Predict,
    restarts: Bool[Tensor, "B L"] | None = None,
) -> State:
    """Draw z_s ~ p_theta(z_s | z_t), as `ancestral`.

    Where `restarts` is True, draw x ~ p(x | z_t), the step to time 0, and then z_s ~ q_s(. | x).
    """
    z, mask_id = state.tokens, schedule.vocab.mask_id
    arrived, noise_t = transition_noise_at(schedule, s, t, z), noise_at(schedule, t, z)
    alpha_t = schedule.alpha(t)[:, None].expand_as(z)
    fresh = noise(schedule, s, torch.full_like(z, FROM_X_THETA), state.random(Stream.RENOISE))
    pending = fresh == FROM_X_THETA
    if restarts is not None:  # noise of time s replaces any x; between 0 and t arrives all of t's
        arrived = torch.where(restarts, torch.where(pending, noise_t, 1), arrived)
    u = state.random(Stream.REDRAW)
    may_change = state.free & happens(redraw_probability(arrived, noise_t), u)
    visible = z != mask_id if mask_id is not None else may_change
    needed = may_change & (pending | (visible & (arrived < 1)))  # 1: redrawn for any x_theta
    rows = predict(state, t, needed).drawn
    q_t = alpha_t * rows.current + noise_t
    changes = torch.where(needed, happens(redraw_probability(arrived, q_t), u), may_change)
    token, probability = rows.draw(state.random(Stream.TOKEN), changes & pending & needed)
    new = torch.where(pending, token, fresh)
    return state._replace(tokens=torch.where(changes, new, z), probability=probability)


@final
@dataclass(frozen=True)
class Psi:
    """Draw z_s from the Psi-posterior of Deschenaux et al. (arXiv 2602.21185), for every noise.

        (1 - renoise) p_theta(z_s | z_t) + renoise sum_x p(x | z_t) q_s(z_s | x)

    `renoise` is 1 - kappa of the paper. Both terms have the marginals of Z_s, so the mixture has
    them too, and the second one can change any token, also a mistake of an earlier step. p(x | z_t)
    is x_theta times q_t(z_t | x), normalised: the reverse step to time 0. It is close to certain
    near t = 0, so samples converge to the data with more steps. With s = t it is a corrector.
    """

    renoise: Annotated[float, _RENOISE] = 0.1
    """Probability to redraw a token from the data and renew its noise."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Draw the tokens of time s."""
        renoise = torch.full_like(t, self.renoise)[:, None]
        restarts = happens(renoise, state.random(Stream.PLACE))
        return reverse_step(schedule, s, t, state, predict, restarts)
