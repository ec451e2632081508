"""Remasking masked diffusion (ReMDM): filled masks may become masks again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch

from gidd.common.config.allowed import number
from gidd.common.config.components import require_options
from gidd.diffusion.categorical import happens
from gidd.diffusion.error_rate import can_score_visible_tokens
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.confidence import free_masks, require_masks

_FRACTION = number(lambda p: 0 <= p <= 1, "in [0, 1]", "0 is the ancestral sampler.")


@final
@dataclass(frozen=True)
class ReMDM:
    """Fill masks, and remask visible tokens with probability sigma (Wang et al., 2503.00307).

    sigma = min(cap, rescale sigma_max), sigma_max = min(1, beta_s / alpha_t). A mask stays with
    probability (beta_s - sigma alpha_t) / beta_t, so for an exact x_theta the marginals are those
    of Z_s. cap = 1 is the paper's ReMDM-rescale, rescale = 1 ReMDM-cap. ReMDM-loop is a plan: steps
    down to time t, `corrector_plan(ReMDM(), n, t)`, steps from t on. For masking noise only; `Psi`
    is its generalisation to every noise.
    """

    cap: float = 0.04
    """Maximum probability to remask a token in one step."""

    rescale: float = 1.0
    """Fraction of the largest possible probability to remask a token."""

    @staticmethod
    def problems(cap: float, rescale: float) -> Iterable[str]:
        """Yield one message per invalid option."""
        yield from _FRACTION.problems("cap", cap)
        yield from _FRACTION.problems("rescale", rescale)

    def __post_init__(self) -> None:
        require_options(self)

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the noise is masking only."""
        require_masks(schedule)
        if can_score_visible_tokens(schedule):
            raise ConfigError(
                "the sampler remdm must have noise that only masks tokens, got a schedule with "
                "random tokens as well. Use the sampler psi, which remasks under every noise."
            )

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Fill and remask the tokens of this step."""
        z, masks = canvas.tokens, free_masks(schedule, canvas)
        mask = torch.full_like(z[:, :1], schedule.vocab.mask_id or 0)  # `check`: there is one
        alpha_t, beta_s, beta_t = (
            schedule.alpha(t)[:, None],
            noise_at(schedule, s, mask),
            noise_at(schedule, t, mask),
        )
        sigma_max = (beta_s / alpha_t.clamp_min(TINY)).clamp_max(1)
        sigma = (self.rescale * sigma_max).clamp_max(self.cap)
        stays = (beta_s - sigma * alpha_t).clamp_min(0) / beta_t.clamp_min(TINY)
        masked = happens(torch.where(masks, stays, sigma), canvas.random(Stream.REDRAW))
        filled = masks & ~masked
        token, probability = prediction.read_samples(
            filled, canvas.random(Stream.TOKEN), lambda rows, _: rows.draw()
        )
        remasked = torch.where(canvas.free & masked, mask, z)
        return StepOutput(torch.where(filled, token, remasked), probability)
