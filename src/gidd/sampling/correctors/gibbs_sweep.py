"""Gibbs sweeps: redraw every position in turn, at the end of sampling."""

from __future__ import annotations

from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import every_nth, require_distance
from gidd.sampling.steps.gibbs import redraw


def gibbs_sweep(
    schedule: MixingSchedule,
    s: Times,
    t: Times,
    canvas: Canvas,
    prediction: Prediction,
    *,
    distance: int = 2,
) -> StepOutput:
    """Redraw every `distance`-th free position from alpha x_theta + beta pi (s = t).

    The next call starts one position later, so `distance` calls are one sweep. Like `gibbs`, it
    leaves the distribution of Z_t invariant, but visits all positions before any is visited twice.

    Args:
        schedule: Noise.
        s: Time after the step, equal to t.
        t: Time of the canvas.
        canvas: The sequences.
        prediction: x_theta at t.
        distance: Distance in tokens between positions that are redrawn together.
    """
    require_distance(distance)
    chosen = every_nth(distance, canvas.step_index % distance, canvas.tokens.shape[1])
    return redraw(schedule, t, canvas, prediction, chosen & canvas.free)
