"""The weights of the ELBO itself (Eq. 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gidd.diffusion.weighting.base import Weighting

if TYPE_CHECKING:
    from torch import Tensor


@final
class ElboWeighting(Weighting):
    """w_t(z_t, x) of the bound (Eq. 13), which grows like 1/t and 1/(1 - t) at the ends.

    The paper limits it to 1e4 in training (App. E): `ClampWeighting(schedule, w_max=1e4)`.
    """

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """inflow(z_t) / q_t(z_t | x)."""
        from gidd.diffusion.elbo import elbo_weight

        return elbo_weight(self.schedule, t, x, z)
