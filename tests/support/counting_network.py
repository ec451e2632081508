"""A network that counts its forward passes."""

from dataclasses import dataclass

from torch import Tensor

from gidd.models import Denoiser


@dataclass
class CountingNetwork:
    """A denoiser for samplers, with the number of its forward passes."""

    denoiser: Denoiser
    forward_passes: int = 0
    accepts_padding = True

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        """Compute features, and count."""
        self.forward_passes += 1
        return self.denoiser.hidden(z, t, valid)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Compute x_theta."""
        return self.denoiser.distribution(hidden)
