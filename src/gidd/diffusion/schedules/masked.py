"""Masked diffusion: a token is either kept or replaced by the mask (Sec. 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import FlatNoise
from gidd.diffusion.schedules.curves import ConstantMixing
from gidd.diffusion.schedules.distributions import mask_noise

if TYPE_CHECKING:
    from torch import Tensor


@final
class MaskedSchedule(ConstantMixing):
    """pi_t = m at all times, with any mixing rate alpha_t (Eq. 1)."""

    def pi(self, like: Tensor) -> Tensor:
        """All mass on the mask token."""
        return mask_noise(self.vocab, like)

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """1 - alpha_t on the mask."""
        return FlatNoise(self.vocab.mask_id, self.curve.beta(t), None)

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """-alpha'/alpha on the mask."""
        return FlatNoise(self.vocab.mask_id, self.curve.hazard(t), None)
