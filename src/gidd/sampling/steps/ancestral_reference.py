"""Ancestral sampling as it is defined: the whole posterior, then one draw for each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.process import posterior
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction

if TYPE_CHECKING:
    from jaxtyping import Float


def ancestral_reference(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
) -> StepOutput:
    """z_s ~ p_theta(z_s | z_t) (Eq. 16), with [B, L, V] probabilities: the definition.

    Where z_t is impossible at time t the posterior is empty, and the token stays.
    """
    z, x_theta = canvas.tokens, prediction.dense()
    p = posterior(schedule, s, t, z, x_theta)
    empty = p.sum(-1, keepdim=True) == 0
    kept = p.scatter(-1, z[..., None], 1.0)
    new = draw(p.where(~empty, kept), canvas.random(Stream.TOKEN)[..., None]).squeeze(-1)
    return StepOutput(new, at(x_theta, new))
