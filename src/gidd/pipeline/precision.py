"""How exactly the body of a network computes."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from gidd.errors import ConfigError
from gidd.models import Denoiser
from gidd.sampling import DenoisingNetwork

Precision = Literal["float32", "bf16"]


def in_precision(denoiser: Denoiser, precision: Precision) -> DenoisingNetwork:
    """The denoiser, with its body in this precision."""
    if precision not in ("float32", "bf16"):
        raise ConfigError(f"precision must be float32 or bf16, got {precision!r}. Choose one.")
    return denoiser if precision == "float32" else Bfloat16(denoiser)


@final
class Bfloat16:
    """A network whose body computes in bf16; head and probabilities stay float32."""

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """The features that go into the head."""
        with torch.autocast(z.device.type, torch.bfloat16):
            return self._denoiser.hidden(z, t)

    def distribution(self, hidden: Tensor) -> Tensor:
        """x_theta from features."""
        return self._denoiser.distribution(hidden)
