"""A noise schedule: alpha, beta pi and the inflow as functions of time."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import gidd
from gidd.common.config.allowed import number
from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules import mask_noise, uniform_noise
from gidd.vocab import Vocab


@gidd.register("schedule", "drifting")
@dataclass(frozen=True)
class DriftingSchedule(MixingSchedule):
    """Random tokens early, masks late: of the noise at time t, a fraction r (1 - t) is random.

    alpha_t = 1 - t, and pi_t = (1 - r (1 - t)) m + r (1 - t) u with masks m and random tokens u.
    """

    vocab: Vocab
    random_fraction: Annotated[float, number(lambda r: 0 <= r <= 1, "in [0, 1]")] = 0.5
    """Fraction r of random tokens in the noise at t = 0; the others are masks."""

    def __post_init__(self) -> None:
        check(self)  # raises if no Markov chain has this noise

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t."""
        return 1 - t

    def beta_pi(self, t: Tensor) -> Tensor:
        """Return t pi_t."""
        r = self.random_fraction
        return self._mix(mask=t * (1 - r + r * t), uniform=r * t * (1 - t))

    def inflow(self, t: Tensor) -> Tensor:
        """Return alpha d/dt (beta pi / alpha), written so that nothing cancels near t = 0 and 1."""
        r = self.random_fraction
        return self._mix(mask=(1 - r + r * t * (2 - t)) / (1 - t), uniform=r * (1 - t))

    def _mix(self, mask: Tensor, uniform: Tensor) -> Tensor:
        m, u = mask_noise(self.vocab, mask), uniform_noise(self.vocab, mask)
        return mask[:, None] * m + uniform[:, None] * u
