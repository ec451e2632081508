"""Gibbs steps: redraw positions from the model's marginal at a fixed time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import every_nth, require_distance, top_spaced
from gidd.sampling.steps.ancestral import FROM_X_THETA, draw_where

if TYPE_CHECKING:
    from jaxtyping import Bool


def gibbs(
    schedule: MixingSchedule,
    s: Times,
    t: Times,
    canvas: Canvas,
    prediction: Prediction,
    *,
    distance: int = 2,
    num_positions: int | None = None,
) -> StepOutput:
    """Redraw random positions, at least `distance` apart, from alpha x_theta + beta pi (s = t).

    x_theta does not depend on the position's own token, so this marginal is the conditional
    distribution of the token given all others. Redrawing one position at a time leaves the
    distribution of Z_t invariant, for every schedule, and at t = 0 samples the data. Positions
    redrawn in one step should be independent given the rest; `distance` is the distance from which
    they are assumed to be (2 is exact for first-order Markov text).

    Args:
        schedule: Noise.
        s: Time after the step, equal to t.
        t: Time of the canvas.
        canvas: The sequences.
        prediction: x_theta at t.
        distance: Least distance in tokens between positions that are redrawn together.
        num_positions: Number of positions to redraw; None is every `distance`-th one, from a random
            offset.
    """
    require_distance(distance)
    u = canvas.random(Stream.PLACE)
    if num_positions is None:
        chosen = every_nth(distance, u[:, 0] % distance, canvas.tokens.shape[1])
    else:
        chosen = top_spaced(u, canvas.free, num_positions, distance)
    return redraw(schedule, t, canvas, prediction, chosen & canvas.free)


def redraw(
    schedule: MixingSchedule,
    t: Times,
    canvas: Canvas,
    prediction: Prediction,
    chosen: Bool[Tensor, "B L"],
) -> StepOutput:
    """Draw z ~ q_t(. | x_theta) at the chosen positions (Eq. 3); noise tokens skip the head."""
    z = canvas.tokens
    fresh = noise(schedule, t, torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    u = canvas.random(Stream.TOKEN).flatten()
    pending = chosen & (fresh == FROM_X_THETA)
    token, probability = prediction.read(
        pending, lambda rows, i: draw_where(rows, u[i], torch.ones_like(i, dtype=torch.bool))
    )
    return StepOutput(torch.where(chosen, torch.where(pending, token, fresh), z), probability)
