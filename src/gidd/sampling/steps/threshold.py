"""Threshold sampling: fill and replace all tokens above a confidence threshold in each step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gidd.common.allowed import number
from gidd.diffusion.categorical import at_token
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.ancestral import draw_where
from gidd.sampling.steps.confidence import free_masks, masks_to_fill, require_masks


def threshold(
    schedule: MixingSchedule,
    s: Times,
    t: Times,
    canvas: Canvas,
    prediction: Prediction,
    *,
    fill: float = 0.7,
    replace: float = 0.9,
) -> StepOutput:
    """Fill masks as `confidence` does, and also all with max x_theta >= `fill`.

    Each is filled with a token drawn from its x_theta. At least one mask is filled per step, and
    confident predictions are filled early, which saves forward passes. A visible token that noise
    can produce is replaced by the most likely token if that has a probability >= `replace`.

    The choice of masks depends on visible tokens, not on tokens still to be drawn. So for masking
    noise and an exact denoiser, one mask per step (fill = 1) samples the data exactly; a smaller
    `fill` treats confident masks as independent and needs fewer steps. Under other noise the
    replacements are not samples, so the distribution is not that of the data.

    Args:
        schedule: Noise.
        s: Time after the step.
        t: Time before the step.
        canvas: The sequences.
        prediction: x_theta at t.
        fill: Fill masks whose most likely token has at least this probability.
        replace: Replace a token if another has at least this probability.
    """
    for problem in _problems(fill, replace):
        raise ConfigError(problem)
    if (t == 1).any():  # sampling from noise; editing given tokens works with any schedule
        require_masks(schedule, t)
    z, masks = canvas.tokens, free_masks(schedule, canvas)
    replaceable = canvas.free & ~masks & (at_token(schedule.beta_pi(t), z) > 0)
    u = canvas.random(Stream.TOKEN).flatten()

    def propose(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token, probability = draw_where(rows, u[i], masks.flatten()[i])
        return token, probability, *rows.max(-1)

    token, probability, top_probability, top = prediction.read(masks | replaceable, propose)
    first = masks_to_fill(schedule, s, canvas, top_probability, at_least=1)
    filled = masks & (first | (top_probability >= fill))
    replaced = replaceable & (top != z) & (top_probability >= replace)
    new = torch.where(filled, token, torch.where(replaced, top, z))
    return StepOutput(new, probability * filled + top_probability * replaced)


def _problems(fill: float, replace: float) -> Iterable[str]:
    fix = "Lower values change more tokens per step; with 1 only certain tokens qualify."
    probability = number(lambda p: 0 <= p <= 1, "in [0, 1]", fix)
    for name, value in (("fill", fill), ("replace", replace)):
        yield from probability.problems(name, value)


threshold.problems = _problems  # pyright: ignore[reportFunctionMemberAccess]
