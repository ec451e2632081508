"""Steps that remask: at random (ReMDM), or tokens that the network doubts."""

from dataclasses import dataclass
from typing import Annotated, final

import torch

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.categorical import happens
from gidd.diffusion.error_rate import can_score_visible_tokens
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.predict import Predict
from gidd.sampling.ranges import PROBABILITY
from gidd.sampling.state import State
from gidd.sampling.steps.confidence import free_masks, masks_to_fill, require_masks

_FRACTION = PROBABILITY._replace(fix="0 is the ancestral sampler.")
_SUSPECTS = PROBABILITY._replace(fix="0 never remasks a token.")


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

    cap: Annotated[float, _FRACTION] = 0.04
    """Maximum probability to remask a token in one step."""
    rescale: Annotated[float, _FRACTION] = 1.0
    """Fraction of the largest possible probability to remask a token."""

    __post_init__ = require_allowed

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the noise is masking only."""
        require_masks(schedule)
        if can_score_visible_tokens(schedule):
            raise ConfigError(
                "the sampler remdm must have noise that only masks tokens, got a schedule with "
                "random tokens as well. Use the sampler psi, which remasks under every noise."
            )

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Fill and remask the tokens of this step."""
        z, masks = state.tokens, free_masks(schedule, state)
        mask = torch.full_like(z[:, :1], schedule.vocab.mask_id or 0)  # `check`: there is one
        alpha_t, beta_s, beta_t = (
            schedule.alpha(t)[:, None],
            noise_at(schedule, s, mask),
            noise_at(schedule, t, mask),
        )
        sigma_max = (beta_s / alpha_t.clamp_min(TINY)).clamp_max(1)
        sigma = (self.rescale * sigma_max).clamp_max(self.cap)
        stays = (beta_s - sigma * alpha_t).clamp_min(0) / beta_t.clamp_min(TINY)
        masked = happens(torch.where(masks, stays, sigma), state.random(Stream.REDRAW))
        filled = masks & ~masked
        token, probability = predict(state, t, filled).draw(state.random(Stream.TOKEN))
        remasked = torch.where(state.free & masked, mask, z)
        tokens = torch.where(filled, token, remasked)
        return state._replace(tokens=tokens, probability=probability)


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

    suspect: Annotated[float, _SUSPECTS] = 0.1
    """Remask tokens with a lower x_theta."""
    max_fraction: Annotated[float, _SUSPECTS] = 0.25
    """Maximum fraction of the free positions to remask in one step."""

    __post_init__ = require_allowed

    def check(self, schedule: MixingSchedule, t: float) -> None:
        """Raise `ConfigError` unless the noise has masks and random tokens."""
        require_masks(schedule)
        if not can_score_visible_tokens(schedule):
            raise ConfigError(
                "the sampler remask_suspects must have noise with random tokens, got masking only: "
                "such a network cannot score visible tokens. Use the sampler remdm or psi."
            )

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Fill and remask the tokens of this step."""
        z, masks = state.tokens, free_masks(schedule, state)
        scored = state.free & ~masks & (noise_at(schedule, t, z) > 0) & (s > 0)[:, None]
        rows = predict(state, t, masks | scored)
        token, probability = rows.draw(state.random(Stream.TOKEN), masks)
        filled = masks_to_fill(schedule, s, state, rows.top_probability)
        suspects = scored & (rows.current < self.suspect)
        most = (self.max_fraction * state.free.sum(-1, keepdim=True)).ceil()
        order = torch.where(suspects, rows.current, torch.inf).argsort(dim=-1, stable=True)
        suspects = suspects & (order.argsort(dim=-1) < most)
        kept = torch.where(suspects, schedule.vocab.mask_id or 0, z)
        tokens = torch.where(filled, token, kept)
        return state._replace(tokens=tokens, probability=probability * filled)
