"""Ancestral sampling by definition: the oracle of `ancestral` in tests."""

from __future__ import annotations

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.process import posterior
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction


def ancestral_reference(
    schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
) -> StepOutput:
    """Draw z_s ~ p_theta(z_s | z_t) (Eq. 16) from all [B, L, V] probabilities.

    Where z_t has probability 0 at time t, the posterior is undefined and the token is kept.
    """
    z, x_theta = canvas.tokens, prediction.dense()
    p = posterior(schedule, s, t, z, x_theta)
    empty = p.sum(-1, keepdim=True) == 0
    kept = p.scatter(-1, z[..., None], 1.0)
    new = draw(p.where(~empty, kept), canvas.random(Stream.TOKEN)[..., None]).squeeze(-1)
    return StepOutput(new, at(x_theta, new))
