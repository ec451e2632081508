"""A schedule from two Python functions, for noise nobody has written a class for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.autodiff import value_and_slope
from gidd.diffusion.schedules.curves import curve_from_unit
from gidd.diffusion.schedules.distributions import mask_noise, uniform_noise
from gidd.vocab import Vocab


@final
@dataclass(frozen=True)
class FunctionalSchedule(MixingSchedule):
    """alpha_t and beta_t pi_t as given; inflow follows by automatic differentiation.

    Both functions are written with torch operations, act on each time by itself and must be
    differentiable for 0 < t < 1.
    """

    vocab: Vocab
    alpha_function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B]."""

    beta_pi_function: Callable[[Tensor], Tensor]
    """t [B] -> beta_t pi_t [B, V], rows summing to 1 - alpha_t."""

    def __post_init__(self) -> None:
        """Check that the chain exists."""
        check(self)

    def alpha(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.alpha_function(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.beta_pi_function(t)

    def inflow(self, t: Tensor) -> Tensor:
        """(beta pi)' - (alpha'/alpha) beta pi, which is beta pi' - (alpha'/alpha) pi (App. H.3)."""
        alpha, alpha_slope = value_and_slope(self.alpha_function, t)
        beta_pi, beta_pi_slope = value_and_slope(self.beta_pi_function, t)
        return beta_pi_slope - (alpha_slope / alpha)[:, None] * beta_pi

    @classmethod
    def from_unit_cube(cls, vocab: Vocab, u: Sequence[float]) -> Self:
        """A curve's alpha, and noise that drifts from uniform to the mask as t grows."""
        curve = curve_from_unit(u[0])

        def beta_pi(t: Tensor) -> Tensor:
            start = uniform_noise(vocab, t)
            end = start if vocab.mask_id is None else mask_noise(vocab, t)
            drift = (u[1] * t)[:, None]
            return curve.beta(t)[:, None] * ((1 - drift) * start + drift * end)

        return cls(vocab, curve.alpha, beta_pi)
