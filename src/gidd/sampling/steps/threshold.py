"""Threshold editing: few steps, many tokens, each as soon as the network is sure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, Change
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.confidence import masked

if TYPE_CHECKING:
    from jaxtyping import Float


def threshold(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    *,
    fill: float = 0.7,
    replace: float = 0.9,
) -> Change:
    """Fill masks whose likeliest token has at least `fill`, replace others by one with `replace`.

    The surest mask of a sequence is filled in any case, so that every step makes progress, and a
    step to s = 0 fills all. Nothing is random: it does not sample the data, it looks for a text
    that the network agrees with, in as few calls as possible. The time only tells the network how
    much noise to expect and the step when to end.
    """
    z, masks = canvas.tokens, masked(schedule, canvas)
    top_probability, top = prediction.read(canvas.free, lambda rows, i: tuple(rows.max(-1)))
    sureness = torch.where(masks, top_probability, -1)
    surest = masks & (canvas.position == sureness.argmax(-1, keepdim=True))
    filled = masks & ((top_probability >= fill) | surest | (s[:, None] == 0))
    replaced = canvas.free & ~masks & (top != z) & (top_probability >= replace)
    changed = filled | replaced
    return Change(torch.where(changed, top, z), top_probability * changed)
