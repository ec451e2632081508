"""Masked diffusion: tokens are only ever replaced by the mask (Sec. 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, final

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.curves import Curve, Linear, curve_from_unit
from gidd.diffusion.schedules.distributions import mask_noise, require_mask
from gidd.vocab import Vocab


@final
@dataclass(frozen=True)
class MaskedSchedule(MixingSchedule):
    """pi_t = m at all times, with any mixing rate (Eq. 1)."""

    vocab: Vocab
    curve: Curve = field(default_factory=Linear)
    """The mixing rate: `Linear`, `Cosine`, `Polynomial`, or any alpha by `FunctionCurve`."""

    def __post_init__(self) -> None:
        """Check that the chain exists."""
        require_mask(self.vocab)
        check(self)

    def alpha(self, t: Tensor) -> Tensor:
        """The curve's alpha_t."""
        return self.curve.alpha(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """1 - alpha_t on the mask, nothing elsewhere."""
        return self.curve.beta(t)[:, None] * mask_noise(self.vocab, t)

    def inflow(self, t: Tensor) -> Tensor:
        """-alpha'/alpha on the mask, nothing elsewhere."""
        return self.curve.hazard(t)[:, None] * mask_noise(self.vocab, t)

    @classmethod
    def from_unit_cube(cls, vocab: Vocab, u: Sequence[float]) -> Self:
        """The first number chooses the curve."""
        return cls(vocab, curve_from_unit(u[0]))
