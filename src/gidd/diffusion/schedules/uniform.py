"""Uniform diffusion: tokens are replaced by random tokens and there is no mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, final

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.curves import Curve, Linear, curve_from_unit
from gidd.diffusion.schedules.distributions import uniform_noise
from gidd.vocab import Vocab


@final
@dataclass(frozen=True)
class UniformSchedule(MixingSchedule):
    """pi_t is uniform at all times, and so is the prior.

    A vocabulary may still have a mask token; this noise never uses it.
    """

    vocab: Vocab
    curve: Curve = field(default_factory=Linear)
    """The mixing rate: `Linear`, `Cosine`, `Polynomial`, or any alpha by `FunctionCurve`."""

    def __post_init__(self) -> None:
        """Check that the chain exists."""
        check(self)

    def alpha(self, t: Tensor) -> Tensor:
        """The curve's alpha_t."""
        return self.curve.alpha(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """1 - alpha_t, shared by all tokens."""
        return self.curve.beta(t)[:, None] * uniform_noise(self.vocab, t)

    def inflow(self, t: Tensor) -> Tensor:
        """-alpha'/alpha, shared by all tokens."""
        return self.curve.hazard(t)[:, None] * uniform_noise(self.vocab, t)

    @classmethod
    def from_unit_cube(cls, vocab: Vocab, u: Sequence[float]) -> Self:
        """The first number chooses the curve."""
        return cls(vocab, curve_from_unit(u[0]))
