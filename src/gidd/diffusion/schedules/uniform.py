"""Uniform diffusion: tokens are replaced by uniformly random tokens, without a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gidd.diffusion.schedule import FlatNoise
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

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """(1 - alpha_t) / N on each of the N tokens but the mask."""
        return self._flat(self.curve.beta(t))

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """-alpha'/alpha / N on each of the N tokens but the mask."""
        return self._flat(self.curve.hazard(t))

    def _flat(self, total: Tensor) -> FlatNoise:
        share = 1 / self.vocab.num_data_tokens
        return FlatNoise(self.vocab.mask_id, total * 0, total * share)
