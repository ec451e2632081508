"""Remask, don't replace (T2M): visible tokens that the network doubts become masks again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gidd.common.config.allowed import number
from gidd.common.config.components import require_options
from gidd.diffusion.error_rate import can_score_visible_tokens
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.row_sampler import RowSampler
from gidd.sampling.steps.confidence import free_masks, masks_to_fill, require_masks

_PROBABILITY = number(lambda p: 0 <= p <= 1, "in [0, 1]", "0 never remasks a token.")


@final
@dataclass(frozen=True)
class RemaskSuspects:
    """Fill masks as `Confidence` does, and put suspect tokens back to masks.

    The token-to-mask rule LowProb of Yao (arXiv 2604.18738): a visible token with x_theta below
    `suspect` becomes a mask, the most suspect ones first and at most `max_fraction` of the free
    positions; later steps fill it again, given a context without it. The last step (s = 0) only
    fills. It needs masks and a network that scores visible tokens: hybrid noise. Unlikely tokens of
    the data are remasked as well, so samples do not follow the data distribution.
    """

    suspect: float = 0.1
    """Remask tokens with a lower x_theta."""

    max_fraction: float = 0.25
    """Maximum fraction of the free positions to remask in one step."""

    @staticmethod
    def problems(suspect: float, max_fraction: float) -> Iterable[str]:
        """Yield one message per invalid option."""
        yield from _PROBABILITY.problems("suspect", suspect)
        yield from _PROBABILITY.problems("max_fraction", max_fraction)

    def __post_init__(self) -> None:
        require_options(self)

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the noise has masks and random tokens."""
        require_masks(schedule)
        if not can_score_visible_tokens(schedule):
            raise ConfigError(
                "the sampler remask_suspects must have noise with random tokens, got masking only: "
                "such a network cannot score visible tokens. Use the sampler remdm or psi."
            )

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Fill and remask the tokens of this step."""
        z, masks = canvas.tokens, free_masks(schedule, canvas)
        scored = canvas.free & ~masks & (noise_at(schedule, t, z) > 0) & (s > 0)[:, None]

        def propose(rows: RowSampler, i: Tensor) -> tuple[Tensor, ...]:
            return *rows.draw(masks.flatten()[i]), rows.top_probability, rows.current

        token, probability, confidence, current = prediction.read_samples(
            masks | scored, canvas.random(Stream.TOKEN), propose
        )
        filled = masks_to_fill(schedule, s, canvas, confidence)
        suspects = scored & (current < self.suspect)
        most = (self.max_fraction * canvas.free.sum(-1, keepdim=True)).ceil()
        order = torch.where(suspects, current, torch.inf).argsort(dim=-1, stable=True)
        suspects = suspects & (order.argsort(dim=-1) < most)
        kept = torch.where(suspects, schedule.vocab.mask_id or 0, z)
        return StepOutput(torch.where(filled, token, kept), probability * filled)
