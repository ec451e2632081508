"""A schedule defined by two Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.autodiff import value_and_slope
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class FunctionalSchedule(MixingSchedule):
    """alpha_t and beta_t pi_t as given functions; inflow is computed by automatic differentiation.

    Both functions use torch operations, act on each time independently and are differentiable for
    0 < t < 1.
    """

    vocab: Vocab
    alpha_function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B]."""

    beta_pi_function: Callable[[Tensor], Tensor]
    """t [B] -> beta_t pi_t [B, V], rows summing to 1 - alpha_t."""

    def __post_init__(self) -> None:
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
