"""Mixing rates alpha_t for schedules whose mixing distribution does not change with time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.diffusion.schedules.autodiff import value_and_slope
from gidd.errors import ScheduleError

if TYPE_CHECKING:
    from jaxtyping import Float


class Curve(ABC):
    """A mixing rate alpha_t with its complement and slope.

    The three are written apart so that none loses its digits: 1 - alpha has none left in float32
    near t = 0, and alpha' / alpha none near t = 1.
    """

    @abstractmethod
    def alpha(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """alpha_t."""

    @abstractmethod
    def beta(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """1 - alpha_t."""

    @abstractmethod
    def hazard(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """-alpha_t' / alpha_t: the rate at which a still clean token is noised."""


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
    """alpha_t = cos(pi t / 2): spends more time at low noise than `Linear`."""

    def alpha(self, t: Tensor) -> Tensor:
        """cos(pi t / 2), as a sine of 1 - t, which is exact near t = 1."""
        return torch.sin(torch.pi / 2 * (1 - t))

    def beta(self, t: Tensor) -> Tensor:
        """1 - cos(pi t / 2), by the half-angle formula."""
        return 2 * torch.sin(torch.pi / 4 * t).square()

    def hazard(self, t: Tensor) -> Tensor:
        """(pi / 2) tan(pi t / 2)."""
        return torch.pi / 2 * torch.sin(torch.pi / 2 * t) / self.alpha(t)


@final
@dataclass(frozen=True)
class Polynomial(Curve):
    """alpha_t = 1 - t^power; power = 1 is `Linear`."""

    power: float = 2.0
    """More than 1 keeps text clean for longer, less than 1 noises it sooner."""

    def __post_init__(self) -> None:
        """Refuse powers whose alpha is not a mixing rate."""
        if not self.power > 0:
            raise ScheduleError(
                f"curve.power must be positive, got {self.power}. "
                "alpha = 1 - t^power must fall from 1 to 0; 1 is linear, 2 a common choice."
            )

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t^power, accurate near t = 1."""
        return -torch.expm1(self.power * t.log())

    def beta(self, t: Tensor) -> Tensor:
        """t^power."""
        return t**self.power

    def hazard(self, t: Tensor) -> Tensor:
        """power t^(power - 1) / (1 - t^power)."""
        return self.power * t ** (self.power - 1) / self.alpha(t)


@final
@dataclass(frozen=True)
class FunctionCurve(Curve):
    """Any differentiable alpha, given as a Python function of t; its slope is by autodiff."""

    function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B], written with torch operations, element by element."""

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


def curve_from_unit(u: float) -> Curve:
    """A curve for every number in [0, 1], for tests that walk through all of them."""
    if u < 0.2:
        return Linear()
    if u < 0.4:
        return Cosine()
    if u < 0.6:
        return FunctionCurve(lambda t: (1 - t) * (1 + t / 2))
    return Polynomial(0.5 + 5 * (u - 0.6))
