"""Threshold editing: few steps, many tokens, each as soon as the network is sure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import at_token
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.ancestral import drawn
from gidd.sampling.steps.confidence import masked, num_due, require_masks, surest

if TYPE_CHECKING:
    from jaxtyping import Float

FILL, REPLACE = 0.7, 0.9
"""From which probability on the likeliest token is written, into a mask or over another token."""


def threshold(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    *,
    fill: float = FILL,
    replace: float = REPLACE,
) -> StepOutput:
    """Fill the masks that are due at s, the surest first, and all whose likeliest token has `fill`.

    Each is filled with a token drawn from its x_theta, and at least one is, so that a text that the
    network is sure of takes few steps. Other tokens that noise may have written are replaced by the
    likeliest one, if that has at least `replace`.

    Which masks come next depends on what is there, not on what will be drawn. So for masking noise
    and an exact denoiser one mask a step (fill = 1) samples the data exactly; a smaller `fill`
    takes masks that it is sure of for independent, and needs fewer steps. Under other noise the
    replacements are edits, not draws: there the law is not the data's.
    """
    for name, value in (("fill", fill), ("replace", replace)):
        if not 0 <= value <= 1:
            raise ConfigError(
                f"{name} must be a probability, from 0 to 1, got {value}. 1 waits until the "
                "network is certain, lower values make more changes in a step."
            )
    if (t == 1).any():  # from noise; text that is there already may be edited under any noise
        require_masks(schedule, t)
    z, masks = canvas.tokens, masked(schedule, canvas)
    doubtful = canvas.free & ~masks & (at_token(schedule.beta_pi(t), z) > 0)
    u = canvas.random(Stream.TOKEN).flatten()

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token, probability = drawn(rows, u[i], masks.flatten()[i])
        return token, probability, *rows.max(-1)

    token, probability, top_probability, top = prediction.read(masks | doubtful, look)
    due = surest(masks, top_probability, num_due(schedule, s, canvas).clamp_min(1))
    filled = masks & (due | (top_probability >= fill))
    replaced = doubtful & (top != z) & (top_probability >= replace)
    new = torch.where(filled, token, torch.where(replaced, top, z))
    return StepOutput(new, probability * filled + top_probability * replaced)
