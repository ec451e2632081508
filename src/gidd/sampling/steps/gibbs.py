"""Gibbs steps: redraw positions from the model's marginal at a fixed time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.common.allowed import integer, optional
from gidd.common.parts import require_options
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.spaced import DISTANCE, every_nth, top_spaced
from gidd.sampling.steps.ancestral import FROM_X_THETA

if TYPE_CHECKING:
    from jaxtyping import Bool

_POSITIONS = optional(
    integer(1, fix="Leave it out to redraw every position that is a multiple of the distance.")
)


@final
@dataclass(frozen=True)
class Gibbs:
    """Redraw random positions, at least `distance` apart, from alpha x_theta + beta pi (s = t).

    x_theta does not depend on the position's own token, so this marginal is the conditional
    distribution of the token given all others. Redrawing one position at a time leaves the
    distribution of Z_t invariant, for every schedule, and at t = 0 samples the data. Positions
    redrawn in one step should be independent given the rest; `distance` is the distance from which
    they are assumed to be (2 is exact for first-order Markov text).
    """

    distance: int = 2
    """Least distance in tokens between positions that are redrawn together."""

    num_positions: int | None = None
    """Number of positions to redraw; None is every `distance`-th one, from a random offset."""

    @staticmethod
    def problems(distance: int, num_positions: int | None) -> Iterable[str]:
        """Yield one message per invalid option."""
        yield from DISTANCE.problems("distance", distance)
        yield from _POSITIONS.problems("num_positions", num_positions)

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Redraw the positions of this call."""
        u = canvas.random(Stream.PLACE)
        if self.num_positions is None:
            chosen = every_nth(self.distance, u[:, 0] % self.distance, canvas.tokens.shape[1])
        else:
            chosen = top_spaced(u, canvas.free, self.num_positions, self.distance)
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
    pending = chosen & (fresh == FROM_X_THETA)
    u = canvas.random(Stream.TOKEN)
    token, probability = prediction.read_draws(pending, u, lambda rows, _: rows.draw())
    return StepOutput(torch.where(chosen, torch.where(pending, token, fresh), z), probability)
