"""The amount of one noise over time, relative to 1 - t of signal.

A mixture of noise distributions P_k in amounts a_k(t) has, with C_t = 1 - t + sum_k a_k(t),

    alpha_t = (1 - t) / C_t,   beta_t pi_t = sum_k a_k(t) P_k / C_t,
    inflow  = sum_k g_k(t) P_k / ((1 - t) C_t),   g_k = a_k + (1 - t) a_k',

because inflow = alpha d/dt (beta pi / alpha) (App. H.8). The hybrid schedule of the paper is the
case a = t on the mask and a = c_t on the uniform distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedules.autodiff import value_and_slope
from gidd.errors import ScheduleError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Amount(ABC):
    """The amount a(t) of one noise: 0 at t = 0, non-negative for t > 0."""

    @abstractmethod
    def value(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """a(t)."""

    @abstractmethod
    def gain(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """a + (1 - t) a', for 0 < t < 1. If it is negative, no Markov chain has this noise."""


@final
@dataclass(frozen=True)
class Ramp(Amount):
    """a = weight * t: noise that increases until t = 1. The ramps determine the prior."""

    weight: float = 1.0
    """Weight of this noise in the prior, relative to the other ramps."""

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ScheduleError(
                f"ramp.weight must be at least 0, got {self.weight}. "
                "It is the relative weight of this noise in the prior; 0 removes it."
            )

    def value(self, t: Tensor) -> Tensor:
        """weight * t."""
        return self.weight * t

    def gain(self, t: Tensor) -> Tensor:
        """weight * (t + (1 - t)) = weight."""
        return t.new_full(t.shape, self.weight)


@final
@dataclass(frozen=True)
class Bump(Amount):
    """a = c_t = B (t (1 - t))^(gamma/2): noise that peaks at t = 1/2, 0 at both ends (Sec. 4).

    With B = 2^gamma p/(1 - p), `peak` p is the fraction of this noise at t = 1/2 (App. H.7).
    """

    peak: float
    """Fraction of tokens with this noise at t = 1/2, in a mixture with one ramp of weight 1."""

    gamma: float = 1.0
    """Shape exponent; a smaller one is flatter, with more of this noise near t = 0 and t = 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.peak < 1:
            raise ScheduleError(
                f"p_uniform (the bump's peak) must be in [0, 1), got {self.peak}. It is the "
                "fraction of random tokens at t = 1/2; the paper uses 0.0, 0.1 and 0.2. For noise "
                "without a mask use UniformSchedule."
            )
        if not 0 < self.gamma <= 2:
            raise ScheduleError(
                f"gamma must be in (0, 2], got {self.gamma}. Above 2 the uniform noise decreases "
                "faster than tokens are masked, so no Markov chain has these marginals; at 0 the "
                "noise at t = 0 would not be zero. The paper uses 1."
            )

    @property
    def B(self) -> float:
        """The constant B of c_t."""
        return 2**self.gamma * self.peak / (1 - self.peak)

    def value(self, t: Tensor) -> Tensor:
        """c_t."""
        return self.B * (t * (1 - t)) ** (self.gamma / 2)

    def gain(self, t: Tensor) -> Tensor:
        """c + (1 - t) c' = c ((gamma/2)(1 - t) + (1 - gamma/2) t) / t, without cancellation."""
        half = self.gamma / 2
        return self.value(t) * (half * (1 - t) + (1 - half) * t) / t


@final
@dataclass(frozen=True)
class FunctionAmount(Amount):
    """Any differentiable amount, as a Python function of t; its derivative is by autodiff."""

    function: Callable[[Tensor], Tensor]
    """t [B] -> a(t) [B], elementwise, with torch operations."""

    def value(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.function(t)

    def gain(self, t: Tensor) -> Tensor:
        """a + (1 - t) a' by forward-mode differentiation."""
        value, slope = value_and_slope(self.function, t)
        return value + (1 - t) * slope
