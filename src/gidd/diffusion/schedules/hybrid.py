"""Masking and uniform noise: the schedules of the paper (Sec. 4) and its published checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.schedule import FlatNoise, MixingSchedule, check
from gidd.diffusion.schedules.curves import require_mask
from gidd.diffusion.schedules.mixture import GAMMA, PEAK, PeakedAmount
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class HybridSchedule(MixingSchedule):
    """Masking plus uniform noise whose fraction peaks at `p_uniform` for t = 1/2 (Eq. 17).

    p_uniform = 0 is exactly masked diffusion: the uniform part is 0, not a small number.
    """

    vocab: Vocab
    p_uniform: Annotated[float, PEAK] = 0.1
    """Fraction of uniformly random tokens at t = 1/2 (p_u); the paper uses 0.0, 0.1 and 0.2."""
    gamma: Annotated[float, GAMMA] = 1.0
    """Shape exponent of c_t, at most 2; the paper uses 1."""

    def __post_init__(self) -> None:
        require_allowed(self, ScheduleError)
        require_mask(self.vocab)
        check(self)

    @property
    def c(self) -> PeakedAmount:
        """c_t, the amount of uniform noise, relative to 1 - t of signal and t of mask."""
        return PeakedAmount(self.p_uniform, self.gamma)

    def alpha(self, t: Tensor) -> Tensor:
        """(1 - t) / C_t, with C_t = 1 + c_t."""
        return (1 - t) / (1 + self.c.value(t))

    def beta_pi(self, t: Tensor) -> Tensor:
        """(t m + c_t u) / C_t."""
        return self.flat_beta_pi(t).rows(self.vocab)

    def inflow(self, t: Tensor) -> Tensor:
        """(m + (c + (1 - t) c') u) / (C_t (1 - t)), App. H.8."""
        return self.flat_inflow(t).rows(self.vocab)

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """t / C_t on the mask, c_t / (C_t N) on each of the N other tokens."""
        c = self.c.value(t)
        return self._flat(mask=t / (1 + c), uniform=c / (1 + c))

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """The two numbers of `inflow`."""
        scale = (1 + self.c.value(t)) * (1 - t)
        return self._flat(mask=1 / scale, uniform=self.c.derivative_term(t) / scale)

    def _flat(self, mask: Tensor, uniform: Tensor) -> FlatNoise:
        share = 1 / self.vocab.num_data_tokens
        return FlatNoise(self.vocab.mask_id, mask, uniform * share if self.p_uniform else None)


_SMALLEST_LOG_B = -20.0


@final
@dataclass(frozen=True)
class FirstReleaseSchedule(MixingSchedule):
    """Signal S = 1 - t - c, mask t and c_t = B sqrt(t (1 - t)) on every other token, over C.

    The schedule of version 1.0.0 of the authors' code, for the published checkpoints: c_t is the
    amount on each single token, and that of the clean token is taken from the signal. p_uniform = 0
    is not exactly masked diffusion, and S < 0 for 1/(1 + B^2) < t < 1, about the last 1e-10 of
    time, where no chain exists: use times up to 1 - 1e-6, or t = 1, which is valid.
    """

    vocab: Vocab
    p_uniform: Annotated[float, PEAK]
    """Approximate fraction of random tokens at t = 1/2; published are 0.0, 0.1 and 0.2."""

    def __post_init__(self) -> None:
        require_allowed(self, ScheduleError)
        require_mask(self.vocab)
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
        return self.flat_beta_pi(t).rows(self.vocab)

    def inflow(self, t: Tensor) -> Tensor:
        """(a' S - a S') / (S C) with a = t on the mask and a = c elsewhere (App. H.8).

        With c' = c (1 - 2t) / (2 t (1 - t)) the numerators are 1 - c / (2 (1 - t)) and c / (2 t).
        """
        return self.flat_inflow(t).rows(self.vocab)

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
