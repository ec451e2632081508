"""Gibbs sweeps: every position drawn anew in turn, for the end of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import every, require_distance
from gidd.sampling.steps.gibbs import redraw

if TYPE_CHECKING:
    from jaxtyping import Float


def gibbs_sweep(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    *,
    distance: int = 2,
) -> StepOutput:
    """Draw every `distance`-th free position anew from alpha x_theta + beta pi (s = t).

    The next call starts one position further, so `distance` calls are one sweep over the text. Like
    `gibbs`, it leaves the law of Z_t as it is; it visits no position twice before all were visited.
    """
    require_distance(distance)
    chosen = every(distance, canvas.step_index % distance, canvas.tokens.shape[1])
    return redraw(schedule, t, canvas, prediction, chosen & canvas.free)
