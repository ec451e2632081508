"""The paper's dynamic weights (Eq. 20)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting.base import Weighting, positive_problems, require_positive
from gidd.errors import ScheduleError

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class DynamicWeighting(Weighting):
    """2 w_max on masks, w_max on replaced and w_max (B/N) exp(-lambda_t/2) on kept tokens (Eq. 20).

    lambda_t = log(alpha_t / (1 - alpha_t)) is the log signal-to-noise ratio. The formula uses the
    constant B of the hybrid schedule, which is 0 for masked diffusion; for other noise use
    `TightWeighting`.
    """

    w_max: float = 1.0
    """Factor on all weights."""

    @staticmethod
    def problems(w_max: float) -> Iterable[str]:
        """Yield one message per invalid option, without torch."""
        return positive_problems("w_max", w_max)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, HybridSchedule | MaskedSchedule):
            raise ScheduleError(
                "dynamic weighting is defined for HybridSchedule and MaskedSchedule, got "
                f"{type(self.schedule).__name__}. Use TightWeighting (--weighting tight): it "
                "is bounded in the same way, defined for every schedule, and has the same "
                "minimiser as the ELBO."
            )
        require_positive("dynamic.w_max", self.w_max)

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """The three cases of Eq. 20; exp(-lambda_t/2) is sqrt((1 - alpha) / alpha)."""
        import torch

        vocab = self.schedule.vocab
        noise = self.schedule.flat_beta_pi(t)
        assert noise is not None, "both schedules are flat"
        noise_to_signal = noise.total(vocab) / self.schedule.alpha(t)
        B = self.schedule.c.B if isinstance(self.schedule, HybridSchedule) else 0.0
        kept = B / vocab.size * noise_to_signal.sqrt()[:, None]
        weight = torch.where(z == vocab.mask_id, 2.0, torch.where(z == x, kept, 1.0))
        return self.w_max * weight
