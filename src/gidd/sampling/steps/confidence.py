"""Filling masks in order of confidence; `Threshold` also replaces visible tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

import torch
from torch import Tensor

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.ranges import PROBABILITY
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


_ALL_MASKS = 0.999  # fraction of masks at t = 1 above which the prior counts as all masks
_LEAST = PROBABILITY._replace(fix="Lower values change more tokens per step.")


class _FillByConfidence:
    """Fills the masks with the highest max x_theta; the number expected at time s is left."""

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the schedule has only masks at t = 1."""
        require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Fill the masks of this step."""
        rows = predict(state, t, free_masks(schedule, state))
        token, probability = self.propose(rows, state)
        filled = masks_to_fill(schedule, s, state, rows.top_probability)
        tokens = torch.where(filled, token, state.tokens)
        return state._replace(tokens=tokens, probability=probability * filled)

    @staticmethod
    def propose(rows: Rows, state: State) -> tuple[Tensor, Tensor]:
        """Return a token for each row, and its probability."""
        raise NotImplementedError


@final
@dataclass(frozen=True)
class Confidence(_FillByConfidence):
    """Fill the masks with the highest max x_theta, each with a token drawn from its x_theta.

    The number of masks left is the one expected at time s; visible tokens are never changed. For
    masking noise and an exact denoiser, one token per step samples the data exactly: the choice of
    position depends on visible tokens, not on tokens still to be drawn. Other noise requires
    tokens to be replaced, so there the distribution differs from the data.
    """

    @staticmethod
    def propose(rows: Rows, state: State) -> tuple[Tensor, Tensor]:
        """Draw from x_theta."""
        return rows.draw(state.random(Stream.TOKEN))


@final
@dataclass(frozen=True)
class Greedy(_FillByConfidence):
    """Fill the masks with the highest max x_theta, each with its most likely token.

    Deterministic: a search for a likely sequence, not a sampler of the data.
    """

    @staticmethod
    def propose(rows: Rows, state: State) -> tuple[Tensor, Tensor]:
        """Take the most likely token."""
        return rows.draw(None)


@final
@dataclass(frozen=True)
class Threshold:
    """Fill masks as `Confidence` does, and also all with max x_theta >= `fill`.

    At least one mask is filled per step, each with a token drawn from its x_theta. A visible token
    that noise can produce is replaced by the most likely token if that has a probability >=
    `replace`. With fill = 1 and masking noise, one mask per step samples the data exactly, as with
    `Confidence`; a smaller `fill` treats confident masks as independent and needs fewer steps.
    """

    fill: Annotated[float, _LEAST] = 0.7
    """Fill masks whose most likely token has at least this probability."""
    replace: Annotated[float, _LEAST] = 0.9
    """Replace a token if another has at least this probability."""

    __post_init__ = require_allowed

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` if sampling from noise, t = 1, does not start with masks only.

        Given tokens, t < 1, are edited with any schedule.
        """
        if t == 1:
            require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Fill and replace the tokens of this step."""
        z, masks = state.tokens, free_masks(schedule, state)
        replaceable = state.free & ~masks & (noise_at(schedule, t, z) > 0)
        rows = predict(state, t, masks | replaceable)
        token, probability = rows.draw(state.random(Stream.TOKEN), masks)
        first = masks_to_fill(schedule, s, state, rows.top_probability, at_least=1)
        filled = masks & (first | (rows.top_probability >= self.fill))
        replaced = replaceable & (rows.top != z) & (rows.top_probability >= self.replace)
        new = torch.where(filled, token, torch.where(replaced, rows.top, z))
        probability = probability * filled + rows.top_probability * replaced
        return state._replace(tokens=new, probability=probability)


def free_masks(schedule: MixingSchedule, state: State) -> Bool[Tensor, "B L"]:
    """Return the free positions that hold a mask."""
    if schedule.vocab.mask_id is None:
        return torch.zeros_like(state.protected)
    return state.free & (state.tokens == schedule.vocab.mask_id)


def masks_to_fill(
    schedule: MixingSchedule,
    s: Times,
    state: State,
    confidences: Float[Tensor, "B L"],
    at_least: int = 0,
) -> Bool[Tensor, "B L"]:
    """Select masks by confidence so that the number expected at time s is left.

    `at_least` masks of every sequence are selected; ties go to the leftmost.
    """
    masks, mask = free_masks(schedule, state), schedule.vocab.mask_id
    if mask is None:
        return masks
    flat = schedule.flat_beta_pi(s)
    expected = schedule.beta_pi(s)[:, mask] if flat is None else flat.mask
    left = (state.free.sum(-1) * expected).round().long()
    num = (masks.sum(-1) - left).clamp_min(at_least)
    order = torch.where(masks, confidences, -1).argsort(dim=-1, descending=True, stable=True)
    return masks & (order.argsort(dim=-1) < num[:, None])


def require_masks(schedule: MixingSchedule) -> None:
    """Raise `ConfigError` unless all tokens are masks at t = 1."""
    mask = schedule.vocab.mask_id
    prior = schedule.beta_pi(torch.ones(1, dtype=torch.float64))[0]
    at_start = 0.0 if mask is None else float(prior[mask])
    if at_start < _ALL_MASKS:
        raise ConfigError(
            "this sampler fills masks, so its schedule must have only masks at t = 1, got "
            f"{at_start:.1%} masks: the other tokens would never change. "
            "Use the ancestral sampler, which works with every schedule."
        )
