"""Gibbs sweeps: redraw every position in turn, at the end of sampling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from gidd.common.parts import require_options
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import DISTANCE, every_nth
from gidd.sampling.steps.gibbs import redraw


@final
@dataclass(frozen=True)
class GibbsSweep:
    """Redraw every `distance`-th free position from alpha x_theta + beta pi (s = t).

    The next call starts one position later, so `distance` calls are one sweep. Like `Gibbs`, it
    leaves the distribution of Z_t invariant, but visits all positions before any is visited twice.
    """

    distance: int = 2
    """Distance in tokens between positions that are redrawn together."""

    @staticmethod
    def problems(distance: int) -> Iterable[str]:
        """Yield one message per invalid option."""
        return DISTANCE.problems("distance", distance)

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Redraw the positions of this call."""
        offset = canvas.step_index % self.distance
        chosen = every_nth(self.distance, offset, canvas.tokens.shape[1])
        return redraw(schedule, t, canvas, prediction, chosen & canvas.free)
