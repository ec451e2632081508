"""Ancestral sampling by the factorised reverse step: the network is asked where it matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import at_token, draw, happens
from gidd.diffusion.process import marginal_at, noise, transition
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

FROM_X_THETA = -1
"""Stands for a token that is still to be drawn from x_theta."""


def redraw_probability(
    arrived: Float[Tensor, ...],
    q_t: Float[Tensor, ...],
) -> Float[Tensor, ...]:
    """Chance that a token is drawn anew in a reverse step (Eq. 16, factorised).

        p_theta(z_s | z_t) = (1 - r) 1[z_s = z_t] + r q_s(z_s | x_theta)
        r = (beta pi)_{t|s}(z_t) / q_t(z_t | x_theta)

    `arrived` is (beta pi)_{t|s}(z_t), the chance that noise put z_t there between s and t.
    """
    return (arrived / q_t.clamp_min(TINY)).clamp_max(1)


def ancestral(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
) -> StepOutput:
    """z_s ~ p_theta(z_s | z_t) at every free position (Eq. 16); same law as `ancestral_reference`.

    r is largest where x_theta(z_t) = 0, so a token that would stay even then stays whatever the
    network says. The head runs at the others alone: about as many as change. A mask has
    x_theta(z_t) = 0, and is looked at only when it turns into a token of x_theta. If no position is
    left to look at, the network is not called.
    """
    z = canvas.tokens
    arrived = at_token(transition(schedule, s, t).beta_pi, z)
    alpha_t = schedule.alpha(t)[:, None].expand_as(arrived).flatten()
    noise_t = marginal_at(schedule, t, z, torch.zeros_like(arrived))
    u = canvas.random(Stream.REDRAW)
    may_change = canvas.free & happens(redraw_probability(arrived, noise_t), u)
    fresh = noise(schedule, s, torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    visible = z != schedule.vocab.mask_id if schedule.vocab.mask_id is not None else may_change
    token_u = canvas.random(Stream.TOKEN)

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        q_t = alpha_t[i] * rows.gather(-1, z.flatten()[i, None]).squeeze(-1) + noise_t.flatten()[i]
        changes = happens(redraw_probability(arrived.flatten()[i], q_t), u.flatten()[i])
        token, probability = drawn(rows, token_u.flatten()[i], changes & _pending(fresh, i))
        return changes, token, probability

    seen = may_change & (visible | (fresh == FROM_X_THETA))
    changes, token, probability = prediction.read(seen, look)
    changes = torch.where(seen, changes, may_change)
    new = torch.where(fresh == FROM_X_THETA, token, fresh)
    return StepOutput(torch.where(changes, new, z), probability)


def drawn(
    rows: Float[Tensor, "K V"], u: Int[Tensor, " K"], where: Bool[Tensor, " K"]
) -> tuple[Int[Tensor, " K"], Float[Tensor, " K"]]:
    """One token from each chosen row and its probability; 0 where not chosen."""
    chosen = rows[where]
    token = draw(chosen, u[where, None])
    probability = chosen.gather(-1, token).squeeze(-1)
    return (
        torch.zeros_like(u).masked_scatter(where, token),
        rows.new_zeros(len(rows)).masked_scatter(where, probability),
    )


def _pending(fresh: Tensor, i: Tensor) -> Tensor:
    return fresh.flatten()[i] == FROM_X_THETA
