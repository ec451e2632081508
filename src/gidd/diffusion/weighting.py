"""Loss weightings. This module does not import torch until one is called: help texts list them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

from gidd.common.config.allowed import require_allowed, within
from gidd.diffusion.schedule import TINY, MixingSchedule, Sequences, Times
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.errors import ScheduleError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


COMPONENTS: dict[str, str] = {
    "elbo": "ElboWeighting",
    "clamp": "ClampWeighting",
    "dynamic": "DynamicWeighting",
    "tight": "TightWeighting",
}
"""Class of each weighting by its name."""


@dataclass(frozen=True)
class Weighting(ABC):
    """The weight of a token's divergence in the training loss, replacing the ELBO's w_t(z_t, x).

    For a given noisy sequence the minimiser of a weighted loss depends on the weights only through
    their ratios across x. Those of the ELBO, 1 / q_t(z | x), cancel the evidence of the visible
    token: its minimiser is p(x_i | Z without z_i). Other ratios have another minimiser, which gives
    the visible token too much or too little probability.

    To add one, name it in `COMPONENTS` and in `WEIGHTING_BUILDERS` of tests/support/strategies.py.
    """

    schedule: MixingSchedule

    @abstractmethod
    def __call__(self, t: Times, x: Sequences, z: Sequences) -> Float[Tensor, "B L"]:
        """Return the weight of each token's `ElboTerms.divergence`."""


@dataclass(frozen=True)
class _ScaledWeighting(Weighting):
    w_max: Annotated[float, within(lambda w: w > 0, "positive", "The paper uses 1.")] = 1.0
    __post_init__ = require_allowed


@final
class ElboWeighting(Weighting):
    """w_t(z_t, x) of the bound (Eq. 13), which grows like 1/t and 1/(1 - t) at the ends.

    The paper limits it to 1e4 in training (App. E): `ClampWeighting(schedule, w_max=1e4)`.
    """

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """inflow(z_t) / q_t(z_t | x)."""
        from gidd.diffusion.elbo import elbo_weight

        return elbo_weight(self.schedule, t, x, z)


@final
@dataclass(frozen=True)
class ClampWeighting(_ScaledWeighting):
    """min(w_max, w_t(z_t, x)) (Eq. 19).

    Its minimiser is the ELBO's for mask-only noise, not with uniform noise: at w_max = 1,
    p_u = 0.2, N = 50,258 and t = 0.01 the odds of the visible token are 50 times too high.
    """

    w_max: float = 1.0
    """Largest weight: 1 for the paper's clipping, `PAPER_CEILING` for its ELBO loss."""

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """min(w_max, w_t)."""
        from gidd.diffusion.elbo import elbo_weight

        return elbo_weight(self.schedule, t, x, z).clamp_max(self.w_max)


@final
@dataclass(frozen=True)
class DynamicWeighting(_ScaledWeighting):
    """2 w_max on masks, w_max on replaced and w_max (B/N) exp(-lambda_t/2) on kept tokens (Eq. 20).

    lambda_t = log(alpha_t / (1 - alpha_t)) is the log signal-to-noise ratio, B the constant of the
    hybrid schedule, 0 for masked diffusion; for other noise use `TightWeighting`.
    """

    w_max: float = 1.0
    """Factor on all weights."""

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, HybridSchedule | MaskedSchedule):
            raise ScheduleError(
                "dynamic weighting is defined for HybridSchedule and MaskedSchedule, got "
                f"{type(self.schedule).__name__}. Use TightWeighting (--weighting tight), which is "
                "bounded in the same way and defined for every schedule."
            )
        super().__post_init__()

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


@final
@dataclass(frozen=True)
class TightWeighting(_ScaledWeighting):
    """w_max c(z) beta_t pi_t(z) / q_t(z | x), with c = 2 on the mask and 1 elsewhere.

    Any weight k(z, t) / q_t(z | x) has the ELBO's minimiser, the leave-one-out posterior. This one
    is 2 w_max on masks, w_max on replaced and less on kept tokens, like the dynamic weights.
    """

    w_max: float = 1.0
    """Weight of a token that noise has replaced."""

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """The fraction of q_t(z | x) that is noise, times w_max, times 2 on the mask."""
        import torch

        from gidd.diffusion.process import marginal_at, noise_at

        q_z = marginal_at(self.schedule, t, z, (z == x).to(t.dtype))
        noise_fraction = noise_at(self.schedule, t, z) / q_z.clamp_min(TINY)
        if self.schedule.vocab.mask_id is not None:
            noise_fraction = torch.where(z == self.schedule.vocab.mask_id, 2, 1) * noise_fraction
        return self.w_max * noise_fraction
