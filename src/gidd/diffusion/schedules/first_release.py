"""The schedule of the published checkpoints (version 1.0.0 of the authors' code).

A hybrid schedule with a different constant B and a different normalisation: c_t is the amount on
each single token, not on all together, and the amount on the clean token is taken from the signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import FlatNoise, MixingSchedule, check
from gidd.diffusion.schedules.distributions import mask_noise
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST_LOG_B = -20.0


@final
@dataclass(frozen=True)
class FirstReleaseSchedule(MixingSchedule):
    """Signal S = 1 - t - c, mask t and c_t = B sqrt(t (1 - t)) on every other token, over C.

    Use it with the published checkpoints only, and `HybridSchedule` for new models: p_uniform = 0
    is not exactly masked diffusion here, and S < 0 for 1/(1 + B^2) < t < 1, where no chain exists.
    With 50258 tokens and p_uniform = 0.2 that is the last 1e-10 of time. S is not clamped, since
    the probabilities would no longer sum to 1: use times up to 1 - 1e-6, or t = 1, which is valid.
    """

    vocab: Vocab
    p_uniform: float
    """Approximate fraction of random tokens at t = 1/2; published are 0.0, 0.1 and 0.2."""

    def __post_init__(self) -> None:
        if not 0 <= self.p_uniform < 1:
            raise ScheduleError(
                f"p_uniform must be in [0, 1), got {self.p_uniform}. "
                "The published checkpoints were trained with 0.0, 0.1 and 0.2."
            )
        check(self)

    @property
    def B(self) -> float:
        """The constant of c_t: log B = -log(1 + (1 - p)/p V/2), at least -20."""
        if self.p_uniform == 0:
            return math.exp(_SMALLEST_LOG_B)
        odds = (1 - self.p_uniform) / self.p_uniform
        return math.exp(max(_SMALLEST_LOG_B, -math.log1p(odds * self.vocab.size / 2)))

    def alpha(self, t: Tensor) -> Tensor:
        """(1 - t - c) / C."""
        return self._signal(t) / self._total(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """t / C on the mask, c / C on every other token."""
        return self._noise(t, self.flat_beta_pi(t))

    def inflow(self, t: Tensor) -> Tensor:
        """(a' S - a S') / (S C) with a = t on the mask and a = c elsewhere (App. H.8).

        With c' = c (1 - 2t) / (2 t (1 - t)) the numerators are 1 - c / (2 (1 - t)) and c / (2 t).
        """
        return self._noise(t, self.flat_inflow(t))

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """The two numbers of `beta_pi`."""
        total = self._total(t)
        return FlatNoise(self.vocab.mask_id, t / total, self._c(t) / total)

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """The two numbers of `inflow`."""
        c, scale = self._c(t), self._signal(t) * self._total(t)
        mask = (1 - c / (2 * (1 - t))) / scale
        return FlatNoise(self.vocab.mask_id, mask, c / (2 * t) / scale)

    def _c(self, t: Tensor) -> Tensor:
        return self.B * (t * (1 - t)).sqrt()

    def _signal(self, t: Tensor) -> Tensor:
        """S = 1 - t - c."""
        return 1 - t - self._c(t)

    def _total(self, t: Tensor) -> Tensor:
        """C = 1 + (V - 2) c."""
        return 1 + (self.vocab.size - 2) * self._c(t)

    def _noise(self, t: Tensor, flat: FlatNoise) -> Tensor:
        """Rows over the vocabulary."""
        is_mask = mask_noise(self.vocab, t).bool()
        assert flat.other is not None
        return flat.mask[:, None].where(is_mask, flat.other[:, None])
