"""A sampler step: new tokens of a batch, from time t to an earlier time s."""

from dataclasses import dataclass
from typing import Annotated

import torch

import gidd
from gidd.common.config.allowed import integer, require_allowed
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling import Predict, State
from gidd.sampling.steps.confidence import masks_to_fill, require_masks


@gidd.register("step", "left-to-right")
@dataclass(frozen=True)
class LeftToRight:
    """Fill the leftmost masks, each with a token drawn from x_theta.

    The number of masks left is the one expected at time s.
    """

    at_least: Annotated[int, integer(0)] = 0
    """Fill at least this many masks per step; 1 leaves no step without effect."""

    __post_init__ = require_allowed  # raises if an option is not what its annotation allows

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise if this step cannot begin at time t; called before a request is admitted."""
        require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Return the state at time s."""
        equal = torch.zeros_like(state.tokens, dtype=t.dtype)  # so the leftmost are filled
        filled = masks_to_fill(schedule, s, state, equal, self.at_least)
        token, probability = predict(state, t, filled).draw(state.random(Stream.TOKEN))
        tokens = torch.where(filled, token, state.tokens)
        return state._replace(tokens=tokens, probability=probability)
