"""Uniform diffusion: tokens are replaced by uniformly random tokens, without a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gidd.diffusion.schedules.curves import ConstantMixing
from gidd.diffusion.schedules.distributions import uniform_noise

if TYPE_CHECKING:
    from torch import Tensor


@final
class UniformSchedule(ConstantMixing):
    """pi_t is uniform at all times, and so is the prior.

    If the vocabulary has a mask token, this noise never produces it.
    """

    def pi(self, like: Tensor) -> Tensor:
        """The same mass on every token but the mask."""
        return uniform_noise(self.vocab, like)
