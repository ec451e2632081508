"""Numeric precision of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from gidd.diffusion.loss import HiddenAndHead
from gidd.errors import ConfigError
from gidd.models import Denoiser, Head
from gidd.sampling import DenoisingNetwork

Precision = Literal["float32", "bf16"]


class PipelineNetwork(DenoisingNetwork, HiddenAndHead, Protocol):
    """A network for samplers and likelihoods."""


def in_precision(denoiser: Denoiser, precision: Precision) -> PipelineNetwork:
    """Return the denoiser with its backbone computing in `precision`."""
    if precision not in ("float32", "bf16"):
        raise ConfigError(f"precision must be float32 or bf16, got {precision!r}.")
    weights = list(denoiser.parameters())
    if precision == "float32":
        if any(w.dtype.itemsize == 2 and w.device.type == "cpu" for w in weights):
            denoiser.float()  # CPUs compute with 16 bits several times as slowly
        return denoiser
    if any(weight.dtype == torch.float16 for weight in weights):
        denoiser.float()  # autocast to bf16 has no layer norm for float16 weights on a CPU
    return _Bfloat16(denoiser)


@final
@dataclass(frozen=True)
class _Bfloat16:
    """A network whose backbone computes in bf16; the output layer and x_theta stay in float32."""

    denoiser: Denoiser

    @property
    def accepts_padding(self) -> bool:
        return self.denoiser.accepts_padding

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        with torch.autocast(z.device.type, torch.bfloat16):
            return self.denoiser.hidden(z, t, valid)

    def head(self) -> Head:
        return self.denoiser.head()

    def distribution(self, hidden: Tensor) -> Tensor:
        return self.denoiser.distribution(hidden)
