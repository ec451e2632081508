"""Ancestral sampling with the factorised reverse step; reads x_theta only where needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import happens
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.row_draws import RowDraws
from gidd.sampling.steps.reverse_noise import ReverseNoise

if TYPE_CHECKING:
    from jaxtyping import Float

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
    schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
) -> StepOutput:
    """Draw z_s ~ p_theta(z_s | z_t) (Eq. 16); same distribution as `ancestral_reference`.

    r is largest for x_theta(z_t) = 0, so a token that is kept even then is kept for any x_theta.
    The head runs only at the other positions, about as many as change. A mask has x_theta(z_t) = 0,
    so its x_theta is read only if it is replaced by a token drawn from x_theta. If no position
    needs x_theta, the network is not called.
    """
    z = canvas.tokens
    noise_of = ReverseNoise.of(schedule, s, t, canvas)
    arrived, noise_t, alpha_t = noise_of.at(z)
    u = canvas.random(Stream.REDRAW)
    may_change = canvas.free & happens(redraw_probability(arrived, noise_t), u)
    fresh = noise_of.draw(torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    pending = fresh == FROM_X_THETA
    visible = z != schedule.vocab.mask_id if schedule.vocab.mask_id is not None else may_change

    def redraw(rows: RowDraws, i: Tensor) -> tuple[Tensor, ...]:
        q_t = alpha_t.flatten()[i] * rows.current + noise_t.flatten()[i]
        changes = happens(redraw_probability(arrived.flatten()[i], q_t), u.flatten()[i])
        return changes, *rows.draw(changes & pending.flatten()[i])

    needed = may_change & (visible | pending)
    token_u = canvas.random(Stream.TOKEN)
    changes, token, probability = prediction.read_draws(needed, token_u, redraw)
    changes = torch.where(needed, changes, may_change)
    new = torch.where(pending, token, fresh)
    return StepOutput(torch.where(changes, new, z), probability)
