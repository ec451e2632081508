"""The paper's schedule: a mixture of masking and uniform noise (Sec. 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import FlatNoise, MixingSchedule, check
from gidd.diffusion.schedules.amounts import Bump
from gidd.diffusion.schedules.distributions import mask_noise, uniform_noise
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
    p_uniform: float = 0.1
    """Fraction of uniformly random tokens at t = 1/2 (p_u); the paper uses 0.0, 0.1 and 0.2."""

    gamma: float = 1.0
    """Shape exponent of c_t, at most 2; the paper uses 1."""

    @staticmethod
    def problems(p_uniform: float, gamma: float) -> Iterable[str]:
        """Yield one message per invalid option, without torch."""
        if not 0 <= p_uniform < 1:
            yield f"p_uniform must be in [0, 1), got {p_uniform}. The paper uses 0.0, 0.1 and 0.2."
        if not 0 < gamma <= 2:
            yield f"gamma must be in (0, 2], got {gamma}. The paper uses 1."

    def __post_init__(self) -> None:
        check(self)

    @property
    def c(self) -> Bump:
        """c_t, the amount of uniform noise, relative to 1 - t of signal and t of mask."""
        return Bump(self.p_uniform, self.gamma)

    def alpha(self, t: Tensor) -> Tensor:
        """(1 - t) / C_t, with C_t = 1 + c_t."""
        return (1 - t) / (1 + self.c.value(t))

    def beta_pi(self, t: Tensor) -> Tensor:
        """(t m + c_t u) / C_t."""
        c = self.c.value(t)
        return self._noise(t, mask=t / (1 + c), uniform=c / (1 + c))

    def inflow(self, t: Tensor) -> Tensor:
        """(m + (c + (1 - t) c') u) / (C_t (1 - t)), App. H.8."""
        scale = (1 + self.c.value(t)) * (1 - t)
        return self._noise(t, mask=1 / scale, uniform=self.c.gain(t) / scale)

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """t / C_t on the mask, c_t / (C_t N) on each of the N other tokens."""
        c = self.c.value(t)
        return self._flat(mask=t / (1 + c), uniform=c / (1 + c))

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """`inflow` in two numbers."""
        scale = (1 + self.c.value(t)) * (1 - t)
        return self._flat(mask=1 / scale, uniform=self.c.gain(t) / scale)

    def _flat(self, mask: Tensor, uniform: Tensor) -> FlatNoise:
        share = 1 / self.vocab.num_data_tokens
        return FlatNoise(self.vocab.mask_id, mask, uniform * share if self.p_uniform else None)

    def _noise(self, t: Tensor, mask: Tensor, uniform: Tensor) -> Tensor:
        """`mask` on the mask token, `uniform` spread evenly over all others."""
        m, u = mask_noise(self.vocab, t), uniform_noise(self.vocab, t)
        return mask[:, None] * m + uniform[:, None] * u
