"""A loss weighting: one weight for each token of a noisy sequence."""

from dataclasses import dataclass

from torch import Tensor

import gidd
from gidd.diffusion.weighting import TightWeighting, Weighting


@gidd.register("weighting", "faded")
@dataclass(frozen=True)
class FadedWeighting(Weighting):
    """(1 - t)^power times the tight weights: less weight on sequences with much noise.

    A factor that depends on t alone does not change which denoiser minimises the loss.
    """

    power: float = 1.0
    """Exponent; 0 is the tight weighting, larger values give more weight to little noise."""

    def __call__(self, t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Return the weights at times t [B] of clean tokens x and noisy tokens z [B, L]."""
        return (1 - t)[:, None] ** self.power * TightWeighting(self.schedule)(t, x, z)
