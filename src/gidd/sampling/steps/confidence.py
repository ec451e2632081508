"""Filling masks in the order of the network's confidence, for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import draw
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, Change
from gidd.sampling.prediction import Look, Prediction

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def confidence(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
) -> Change:
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
) -> Change:
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
) -> Change:
    """`look` gives token, its probability and the confidence that decides who comes first."""
    masks = masked(schedule, canvas)
    token, probability, sureness = prediction.read(masks, look)
    number = masks.sum(-1) - _masks_at(schedule, s, canvas)
    order = torch.where(masks, sureness, -1).argsort(dim=-1, descending=True, stable=True)
    filled = masks & (order.argsort(dim=-1) < number[:, None])
    return Change(torch.where(filled, token, canvas.tokens), probability * filled)


def _masks_at(schedule: MixingSchedule, s: Tensor, canvas: Canvas) -> Int[Tensor, " B"]:
    """How many of the free positions hold a mask at time s, on average and rounded."""
    if schedule.vocab.mask_id is None:
        raise ConfigError(
            "filling masks by confidence needs a vocabulary with a mask, got vocab.mask_id = None. "
            "Use the ancestral step, which works with every schedule."
        )
    share = schedule.beta_pi(s)[:, schedule.vocab.mask_id]
    return (canvas.free.sum(-1) * share).round().long()
