"""Bounded weights with exactly the ELBO's minimiser, for every schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from gidd.diffusion.categorical import at_token
from gidd.diffusion.process import marginal_at
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.diffusion.weighting.base import Weighting, require_positive


@final
@dataclass(frozen=True)
class TightWeighting(Weighting):
    """w_max c(z) beta_t pi_t(z) / q_t(z | x), with c = 2 on the mask and 1 elsewhere.

    That is 2 w_max on masks, w_max on replaced tokens and w_max beta pi(z) / (alpha + beta pi(z))
    on kept ones: the shape of the dynamic weights. Any weight k(z, t) / q_t(z | x) has the ELBO's
    minimiser, the leave-one-out posterior; this k keeps it between 0 and 2 w_max.
    """

    schedule: MixingSchedule
    w_max: float = 1.0
    """The weight of a token that noise has replaced."""

    def __post_init__(self) -> None:
        """Check the factor."""
        require_positive("tight.w_max", self.w_max)

    @classmethod
    def of(cls, schedule: MixingSchedule) -> Self:
        """Defined for every schedule."""
        return cls(schedule)

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Share of the noise in q_t(z | x), times w_max and 2 on the mask."""
        q_z = marginal_at(self.schedule, t, z, (z == x).to(t.dtype))
        noise_share = at_token(self.schedule.beta_pi(t), z) / q_z.clamp_min(TINY)
        if self.schedule.vocab.mask_id is not None:
            noise_share = torch.where(z == self.schedule.vocab.mask_id, 2, 1) * noise_share
        return self.w_max * noise_share
