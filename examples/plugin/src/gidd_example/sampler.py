"""A sampler step: new tokens of a batch, from time t to an earlier time s."""

import torch
from torch import Tensor

import gidd
from gidd.diffusion.categorical import at, draw
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.confidence import masks_to_fill, require_masks


@gidd.register("step", "left-to-right")
def left_to_right(
    schedule: MixingSchedule,
    s: Times,
    t: Times,
    canvas: Canvas,
    prediction: Prediction,
    *,
    at_least: int = 0,
) -> StepOutput:
    """Fill the leftmost masks, each with a token drawn from x_theta.

    The number of masks left is the one expected at time s.

    Args:
        schedule: Noise; all tokens must be masks at t = 1.
        s: Time after the step.
        t: Time before the step.
        canvas: The sequences.
        prediction: x_theta at t.
        at_least: Fill at least this many masks per step; 1 leaves no step without effect.
    """
    require_masks(schedule, t)
    equal = torch.zeros_like(canvas.tokens, dtype=t.dtype)  # among equals, the leftmost are filled
    filled = masks_to_fill(schedule, s, canvas, equal, at_least)
    u = canvas.random(Stream.TOKEN).flatten()

    def draw_tokens(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token = draw(rows, u[i, None]).squeeze(-1)
        return token, at(rows, token)

    token, probability = prediction.read(filled, draw_tokens)
    return StepOutput(torch.where(filled, token, canvas.tokens), probability)
