"""Bounded weights with the minimiser of the ELBO, for every schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import TINY
from gidd.diffusion.weighting.base import Weighting, positive_problems, require_positive

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class TightWeighting(Weighting):
    """w_max c(z) beta_t pi_t(z) / q_t(z | x), with c = 2 on the mask and 1 elsewhere.

    That is 2 w_max on masks, w_max on replaced tokens and w_max beta pi(z) / (alpha + beta pi(z))
    on kept ones, similar to the dynamic weights. Any weight k(z, t) / q_t(z | x) has the ELBO's
    minimiser, the leave-one-out posterior; with this k it is between 0 and 2 w_max.
    """

    w_max: float = 1.0
    """Weight of a token that noise has replaced."""

    @staticmethod
    def problems(w_max: float) -> Iterable[str]:
        """Yield one message per invalid option, without torch."""
        return positive_problems("w_max", w_max)

    def __post_init__(self) -> None:
        require_positive("tight.w_max", self.w_max)

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """The fraction of q_t(z | x) that is noise, times w_max, times 2 on the mask."""
        import torch

        from gidd.diffusion.process import marginal_at, noise_at

        q_z = marginal_at(self.schedule, t, z, (z == x).to(t.dtype))
        noise_fraction = noise_at(self.schedule, t, z) / q_z.clamp_min(TINY)
        if self.schedule.vocab.mask_id is not None:
            noise_fraction = torch.where(z == self.schedule.vocab.mask_id, 2, 1) * noise_fraction
        return self.w_max * noise_fraction
