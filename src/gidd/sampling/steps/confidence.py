"""Filling masks in order of confidence, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.row_draws import RowDraws
from gidd.sampling.static_read import DrawFunction

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


_ALL_MASKS = 0.999
"""Fraction of masks at t = 1 above which the prior counts as all masks."""


@final
@dataclass(frozen=True)
class Confidence:
    """Fill the masks with the highest max x_theta, each with a token drawn from its x_theta.

    The number of masks left is the one expected at time s; visible tokens are never changed. For
    masking noise and an exact denoiser, one token per step samples the data exactly: the choice of
    position depends on visible tokens, not on tokens still to be drawn. Other noise requires
    tokens to be replaced, so there the distribution is not that of the data.
    """

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the schedule has only masks at t = 1."""
        require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Fill the masks of this step."""
        return _fill(
            schedule, s, canvas, prediction, lambda rows, _: (*rows.draw(), rows.top_probability)
        )


@final
@dataclass(frozen=True)
class Greedy:
    """Fill the masks with the highest max x_theta, each with its most likely token.

    Deterministic: a search for a likely sequence, not a sampler of the data.
    """

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the schedule has only masks at t = 1."""
        require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Fill the masks of this step."""

        def most_likely(rows: RowDraws, _: Tensor) -> tuple[Tensor, ...]:
            return rows.top, rows.top_probability, rows.top_probability

        return _fill(schedule, s, canvas, prediction, most_likely)


def free_masks(schedule: MixingSchedule, canvas: Canvas) -> Bool[Tensor, "B L"]:
    """Return the free positions that hold a mask."""
    if schedule.vocab.mask_id is None:
        return torch.zeros_like(canvas.protected)
    return canvas.free & (canvas.tokens == schedule.vocab.mask_id)


def _fill(
    schedule: MixingSchedule,
    s: Times,
    canvas: Canvas,
    prediction: Prediction,
    propose: DrawFunction,
) -> StepOutput:
    """Fill by confidence; `propose` returns token, its probability and the confidence."""
    masks = free_masks(schedule, canvas)
    u = canvas.random(Stream.TOKEN)
    token, probability, confidences = prediction.read_draws(masks, u, propose)
    filled = masks_to_fill(schedule, s, canvas, confidences)
    return StepOutput(torch.where(filled, token, canvas.tokens), probability * filled)


def masks_to_fill(
    schedule: MixingSchedule,
    s: Times,
    canvas: Canvas,
    confidences: Float[Tensor, "B L"],
    at_least: int = 0,
) -> Bool[Tensor, "B L"]:
    """Select masks by confidence so that the number expected at time s is left.

    `at_least` masks of every sequence are selected; ties go to the leftmost.
    """
    masks, mask = free_masks(schedule, canvas), schedule.vocab.mask_id
    if mask is None:
        return masks
    flat = schedule.flat_beta_pi(s)
    expected = schedule.beta_pi(s)[:, mask] if flat is None else flat.mask
    left = (canvas.free.sum(-1) * expected).round().long()
    num = (masks.sum(-1) - left).clamp_min(at_least)
    order = torch.where(masks, confidences, -1).argsort(dim=-1, descending=True, stable=True)
    return masks & (order.argsort(dim=-1) < num[:, None])


def require_masks(schedule: MixingSchedule) -> None:
    """Raise `ConfigError` unless all tokens are masks at t = 1."""
    try:
        at_start = _prior_masks(schedule)
    except TypeError:  # a schedule of one's own need not be hashable
        at_start = _prior_masks.__wrapped__(schedule)
    if at_start < _ALL_MASKS:
        raise ConfigError(
            "this sampler fills masks, so its schedule must have only masks at t = 1, got "
            f"{at_start:.1%} masks: the other tokens would never change. "
            "Use the ancestral sampler, which works with every schedule."
        )


@lru_cache(maxsize=64)  # a row of the vocabulary takes a millisecond, for every request
def _prior_masks(schedule: MixingSchedule) -> float:
    """Return the fraction of masks at t = 1."""
    one = torch.ones(1, dtype=torch.float64)
    mask = schedule.vocab.mask_id
    return 0.0 if mask is None else float(schedule.beta_pi(one)[0, mask])
