"""Filling masks in the order of the network's confidence, for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import draw
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Look, Prediction

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


_ALL_MASKS = 0.999
"""Share of masks at t = 1 from which no other token needs to be replaced."""


def confidence(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
) -> StepOutput:
    """Fill the masks with the surest x_theta, each with a token drawn from its x_theta.

    As many masks stay as the schedule has at time s; tokens that stand are never changed. For
    masking noise and an exact denoiser, one token a step samples the data exactly: which position
    comes next depends on what is already there, not on what will be drawn. Other noise asks for
    tokens to be taken back, so there its law is not the data's.
    """
    u = canvas.random(Stream.TOKEN).flatten()

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token = draw(rows, u[i, None])
        return token.squeeze(-1), rows.gather(-1, token).squeeze(-1), rows.amax(-1)

    return _fill(schedule, s, canvas, prediction, look)


def greedy(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
) -> StepOutput:
    """Fill the masks with the surest x_theta, each with its most likely token.

    Nothing is random: it does not sample the data, it looks for a likely text.
    """

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        top, token = rows.max(-1)
        return token, top, top

    return _fill(schedule, s, canvas, prediction, look)


def masked(schedule: MixingSchedule, canvas: Canvas) -> Bool[Tensor, "B L"]:
    """Free positions that hold a mask."""
    if schedule.vocab.mask_id is None:
        return torch.zeros_like(canvas.protected)
    return canvas.free & (canvas.tokens == schedule.vocab.mask_id)


def _fill(
    schedule: MixingSchedule, s: Tensor, canvas: Canvas, prediction: Prediction, look: Look
) -> StepOutput:
    """`look` gives token, its probability and the confidence that decides who comes first."""
    require_masks(schedule, s)
    masks = masked(schedule, canvas)
    token, probability, sureness = prediction.read(masks, look)
    filled = surest(masks, sureness, num_due(schedule, s, canvas))
    return StepOutput(torch.where(filled, token, canvas.tokens), probability * filled)


def surest(
    masks: Bool[Tensor, "B L"], sureness: Float[Tensor, "B L"], number: Int[Tensor, " B"]
) -> Bool[Tensor, "B L"]:
    """So many of the masks; of equally sure ones the leftmost."""
    order = torch.where(masks, sureness, -1).argsort(dim=-1, descending=True, stable=True)
    return masks & (order.argsort(dim=-1) < number[:, None])


def num_due(schedule: MixingSchedule, s: Tensor, canvas: Canvas) -> Int[Tensor, " B"]:
    """How many masks must go so that as many are left as noise has at time s, on average."""
    masks = masked(schedule, canvas)
    if schedule.vocab.mask_id is None:
        return masks.sum(-1)
    left = canvas.free.sum(-1) * schedule.beta_pi(s)[:, schedule.vocab.mask_id]
    return masks.sum(-1) - left.round().long()


def require_masks(schedule: MixingSchedule, like: Tensor) -> None:
    """Refuse a schedule that does not begin to sample with masks alone; `like` is any time."""
    mask = schedule.vocab.mask_id
    at_start = 0.0 if mask is None else float(schedule.beta_pi(torch.ones_like(like[:1]))[0, mask])
    if at_start < _ALL_MASKS:
        raise ConfigError(
            "filling masks in an order needs noise that ends in masks alone, got a schedule with "
            f"{at_start:.1%} of them at t = 1: it would leave the other tokens as they are. "
            "Use the ancestral step, which works with every schedule."
        )
