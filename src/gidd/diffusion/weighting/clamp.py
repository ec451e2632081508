"""The ELBO weights with an upper limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.weighting.base import Weighting, positive_problems, require_positive

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class ClampWeighting(Weighting):
    """min(w_max, w_t(z_t, x)) (Eq. 19).

    For mask-only noise the minimiser is that of the ELBO. With uniform noise it is not: at
    w_max = 1, p_u = 0.2 and N = 50,258 the odds of the visible token are 50 times too high at
    t = 0.01.
    """

    w_max: float = 1.0
    """Largest weight: 1 for the paper's clipping, `PAPER_CEILING` for its ELBO loss."""

    @staticmethod
    def problems(w_max: float) -> Iterable[str]:
        """Yield one message per invalid option, without torch."""
        return positive_problems("w_max", w_max)

    def __post_init__(self) -> None:
        require_positive("clamp.w_max", self.w_max)

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """min(w_max, w_t)."""
        from gidd.diffusion.elbo import elbo_weight

        return elbo_weight(self.schedule, t, x, z).clamp_max(self.w_max)
