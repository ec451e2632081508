"""Mixing rates alpha_t, and schedules whose mixing distribution is constant in time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.autodiff import value_and_slope
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Curve(ABC):
    """A mixing rate alpha_t with its complement and its hazard rate.

    Each has its own formula, for precision: in float32, computing 1 - alpha from alpha loses all
    digits near t = 0, and alpha' / alpha near t = 1.
    """

    @abstractmethod
    def alpha(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """alpha_t."""

    @abstractmethod
    def beta(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """1 - alpha_t."""

    @abstractmethod
    def hazard(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """-alpha_t' / alpha_t: the rate at which clean tokens are noised."""


@final
@dataclass(frozen=True)
class Linear(Curve):
    """alpha_t = 1 - t, the paper's choice for masked diffusion."""

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t."""
        return 1 - t

    def beta(self, t: Tensor) -> Tensor:
        """t."""
        return t

    def hazard(self, t: Tensor) -> Tensor:
        """1 / (1 - t)."""
        return 1 / (1 - t)


@final
@dataclass(frozen=True)
class Cosine(Curve):
    """alpha_t = cos(pi t / 2): less noise than `Linear` at every time."""

    def alpha(self, t: Tensor) -> Tensor:
        """cos(pi t / 2), as a sine of 1 - t for precision near t = 1."""
        return (math.pi / 2 * (1 - t)).sin()

    def beta(self, t: Tensor) -> Tensor:
        """1 - cos(pi t / 2), by the half-angle formula."""
        return 2 * (math.pi / 4 * t).sin().square()

    def hazard(self, t: Tensor) -> Tensor:
        """(pi / 2) tan(pi t / 2)."""
        return math.pi / 2 * (math.pi / 2 * t).sin() / self.alpha(t)


@final
@dataclass(frozen=True)
class Polynomial(Curve):
    """alpha_t = 1 - t^power; power = 1 is `Linear`."""

    power: float = 2.0
    """Above 1, noise is added later; below 1, earlier."""

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ScheduleError(
                f"curve.power must be positive, got {self.power}. "
                "alpha = 1 - t^power must decrease from 1 to 0; 1 is linear, 2 is a common choice."
            )

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t^power, accurate near t = 1."""
        return -(self.power * t.log()).expm1()

    def beta(self, t: Tensor) -> Tensor:
        """t^power."""
        return t**self.power

    def hazard(self, t: Tensor) -> Tensor:
        """power t^(power - 1) / (1 - t^power)."""
        return self.power * t ** (self.power - 1) / self.alpha(t)


@final
@dataclass(frozen=True)
class FunctionCurve(Curve):
    """Any differentiable alpha, as a Python function of t; its derivative is by autodiff."""

    function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B], elementwise, with torch operations."""

    def alpha(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.function(t)

    def beta(self, t: Tensor) -> Tensor:
        """1 - alpha_t."""
        return 1 - self.function(t)

    def hazard(self, t: Tensor) -> Tensor:
        """-alpha'/alpha by forward-mode differentiation."""
        alpha, slope = value_and_slope(self.function, t)
        return -slope / alpha


@dataclass(frozen=True)
class ConstantMixing(MixingSchedule):
    """The same mixing distribution pi at all times, with any mixing rate alpha_t."""

    vocab: Vocab
    curve: Curve = field(default_factory=Linear)
    """Mixing rate alpha_t: `Linear`, `Cosine`, `Polynomial`, or any function by `FunctionCurve`."""

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def pi(self, like: Tensor) -> Float[Tensor, " V"]:
        """The mixing distribution, with the device and type of `like`."""

    def alpha(self, t: Tensor) -> Tensor:
        """The curve's alpha_t."""
        return self.curve.alpha(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """(1 - alpha_t) pi."""
        return self.curve.beta(t)[:, None] * self.pi(t)

    def inflow(self, t: Tensor) -> Tensor:
        """(-alpha'/alpha) pi: pi' = 0 in Eq. 11."""
        return self.curve.hazard(t)[:, None] * self.pi(t)
