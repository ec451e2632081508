"""Gibbs steps and sweeps: redraw positions from the model's marginal at a fixed time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

import torch
from torch import Tensor

from gidd.common.config.allowed import integer, require_allowed
from gidd.common.devices import device_type, positions
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling.predict import Predict
from gidd.sampling.state import State
from gidd.sampling.steps.ancestral import FROM_X_THETA

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped


DISTANCE = integer(1, fix="1 allows to change all positions in one step, 2 every other one.")
"""Allowed distances between positions that are changed together."""

_POSITIONS = integer(1, fix="Leave it out to redraw every distance-th position.")


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

    distance: Annotated[int, DISTANCE] = 2
    """Least distance in tokens between positions that are redrawn together."""
    num_positions: Annotated[int, _POSITIONS] | None = None
    """Number of positions to redraw; None is every `distance`-th one, from a random offset."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Redraw the positions of this call."""
        u = state.random(Stream.PLACE)
        if self.num_positions is None:
            chosen = every_nth(self.distance, u[:, 0] % self.distance, state.tokens.shape[1])
        else:
            chosen = top_spaced(u, state.free, self.num_positions, self.distance)
        return redraw(schedule, t, state, predict, chosen & state.free)


@final
@dataclass(frozen=True)
class GibbsSweep:
    """Redraw every `distance`-th free position from alpha x_theta + beta pi (s = t).

    The next call starts one position later, so `distance` calls are one sweep. Like `Gibbs`, it
    leaves the distribution of Z_t invariant, but visits all positions before any is visited twice.
    """

    distance: Annotated[int, DISTANCE] = 2
    """Distance in tokens between positions that are redrawn together."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Redraw the positions of this call."""
        offset = state.step_index % self.distance
        chosen = every_nth(self.distance, offset, state.tokens.shape[1])
        return redraw(schedule, t, state, predict, chosen & state.free)


def redraw(
    schedule: MixingSchedule,
    t: Times,
    state: State,
    predict: Predict,
    chosen: Bool[Tensor, "B L"],
) -> State:
    """Draw z ~ q_t(. | x_theta) at the chosen positions (Eq. 3); noise tokens skip the head."""
    z = state.tokens
    fresh = noise(schedule, t, torch.full_like(z, FROM_X_THETA), state.random(Stream.RENOISE))
    pending = chosen & (fresh == FROM_X_THETA)
    token, probability = predict(state, t, pending).draw(state.random(Stream.TOKEN))
    tokens = torch.where(chosen, torch.where(pending, token, fresh), z)
    return state._replace(tokens=tokens, probability=probability)


def top_spaced(
    score: Shaped[Tensor, "B L"], allowed: Bool[Tensor, "B L"], num: int, distance: int
) -> Bool[Tensor, "B L"]:
    """Select up to `num` allowed positions by score, any two at least `distance` apart.

    Greedy: take the highest score, then the highest of those far enough from it, and so on.
    """
    position = positions(score.shape[1], score.device)
    lowest = -torch.inf if score.is_floating_point() else torch.iinfo(score.dtype).min
    chosen = torch.zeros_like(allowed)
    for _ in range(min(num, score.shape[1])):
        best = torch.where(allowed, score, lowest).argmax(-1, keepdim=True)
        chosen |= (position == best) & allowed
        allowed = allowed & ((position - best).abs() >= distance)
        if device_type(allowed) == "cpu" and not allowed.any():  # on a GPU this would synchronize
            break
    return chosen


def every_nth(distance: int, offset: Int[Tensor, " B"], length: int) -> Bool[Tensor, "B L"]:
    """Select the positions that equal `offset` modulo `distance`."""
    position = torch.arange(length, device=offset.device)
    return (position - offset[:, None]) % distance == 0
