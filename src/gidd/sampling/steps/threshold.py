"""Threshold sampling: fill and replace all tokens above a confidence threshold in each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gidd.common.allowed import number
from gidd.common.parts import require_options
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.row_draws import RowDraws
from gidd.sampling.steps.confidence import free_masks, masks_to_fill, require_masks

_PROBABILITY = number(
    lambda p: 0 <= p <= 1,
    "in [0, 1]",
    "Lower values change more tokens per step; with 1 only certain tokens qualify.",
)


@final
@dataclass(frozen=True)
class Threshold:
    """Fill masks as `Confidence` does, and also all with max x_theta >= `fill`.

    Each is filled with a token drawn from its x_theta. At least one mask is filled per step, and
    confident predictions are filled early, which saves forward passes. A visible token that noise
    can produce is replaced by the most likely token if that has a probability >= `replace`.

    The choice of masks depends on visible tokens, not on tokens still to be drawn. So for masking
    noise and an exact denoiser, one mask per step (fill = 1) samples the data exactly; a smaller
    `fill` treats confident masks as independent and needs fewer steps. Under other noise the
    replacements are not samples, so the distribution is not that of the data.
    """

    fill: float = 0.7
    """Fill masks whose most likely token has at least this probability."""

    replace: float = 0.9
    """Replace a token if another has at least this probability."""

    @staticmethod
    def problems(fill: float, replace: float) -> Iterable[str]:
        """Yield one message per invalid option."""
        yield from _PROBABILITY.problems("fill", fill)
        yield from _PROBABILITY.problems("replace", replace)

    def __post_init__(self) -> None:
        require_options(self)

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` if sampling from noise, t = 1, does not start with masks only.

        Given tokens, t < 1, are edited with any schedule.
        """
        if t == 1:
            require_masks(schedule)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Fill and replace the tokens of this step."""
        z, masks = canvas.tokens, free_masks(schedule, canvas)
        replaceable = canvas.free & ~masks & (noise_at(schedule, t, z) > 0)

        def propose(rows: RowDraws, i: Tensor) -> tuple[Tensor, ...]:
            top = rows.top  # before its probability, which comes with it
            return *rows.draw(masks.flatten()[i]), top, rows.top_probability

        token, probability, top, top_probability = prediction.read_draws(
            masks | replaceable, canvas.random(Stream.TOKEN), propose
        )
        first = masks_to_fill(schedule, s, canvas, top_probability, at_least=1)
        filled = masks & (first | (top_probability >= self.fill))
        replaced = replaceable & (top != z) & (top_probability >= self.replace)
        new = torch.where(filled, token, torch.where(replaced, top, z))
        return StepOutput(new, probability * filled + top_probability * replaced)
