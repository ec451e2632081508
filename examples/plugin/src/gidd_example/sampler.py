"""A sampler step: new tokens of a batch, from time t to an earlier time s."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

import gidd
from gidd.common.config.components import require_options
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

    at_least: int = 0
    """Fill at least this many masks per step; 1 leaves no step without effect."""

    @staticmethod
    def problems(at_least: int) -> Iterable[str]:
        """Yield one message per invalid option."""
        if at_least < 0:
            yield f"at_least must be at least 0, got {at_least}."

    def __post_init__(self) -> None:
        require_options(self)  # raises if `problems` yields one

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
