"""The ELBO's own weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from torch import Tensor

from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.weighting.base import Weighting


@final
@dataclass(frozen=True)
class ElboWeighting(Weighting):
    """w_t(z_t, x) as in the bound (Eq. 13). It grows like 1/t and 1/(1 - t) at the ends.

    The paper caps it at 1e4 in training (App. E): `ClampWeighting(schedule, w_max=1e4)`.
    """

    schedule: MixingSchedule

    @classmethod
    def of(cls, schedule: MixingSchedule) -> Self:
        """Defined for every schedule."""
        return cls(schedule)

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """inflow(z_t) / q_t(z_t | x)."""
        return elbo_weight(self.schedule, t, x, z)
