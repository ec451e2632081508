"""Gibbs redraws: positions drawn anew from the model's own marginal, at an unchanged time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import every, require_distance, top_spaced
from gidd.sampling.steps.ancestral import FROM_X_THETA, drawn

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def gibbs(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    *,
    distance: int = 2,
    num_positions: int | None = None,
) -> StepOutput:
    """Draw random positions, at least `distance` apart, anew from alpha x_theta + beta pi (s = t).

    x_theta leaves a position's own token out of account, so this marginal is the law of the token
    given all others: one position at a time leaves the law of Z_t as it is, for every schedule, and
    at t = 0 samples the data. Positions drawn in one call should be independent given the rest;
    `distance` is how far apart they are taken to be so (2 is exact for first-order Markov text).

    Without `num_positions`, every `distance`-th position is drawn, from a random one on.
    """
    require_distance(distance)
    u = canvas.random(Stream.PLACE)
    if num_positions is None:
        chosen = every(distance, u[:, 0] % distance, canvas.tokens.shape[1])
    else:
        chosen = top_spaced(u, canvas.free, num_positions, distance)
    return redraw(schedule, t, canvas, prediction, chosen & canvas.free)


def redraw(
    schedule: MixingSchedule,
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    chosen: Bool[Tensor, "B L"],
) -> StepOutput:
    """z ~ q_t(. | x_theta) at the chosen positions (Eq. 3); no noise needs the head."""
    z = canvas.tokens
    fresh = noise(schedule, t, torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    u = canvas.random(Stream.TOKEN).flatten()
    pending = chosen & (fresh == FROM_X_THETA)
    token, probability = prediction.read(
        pending, lambda rows, i: drawn(rows, u[i], torch.ones_like(i, dtype=torch.bool))
    )
    return StepOutput(torch.where(chosen, torch.where(pending, token, fresh), z), probability)
