"""Numeric precision of the network, and its place on a device."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.diffusion.fused import HEAD_ROWS
from gidd.diffusion.loss import HiddenAndHead
from gidd.errors import ConfigError
from gidd.models import Denoiser, Head
from gidd.models.denoiser import LogitHead
from gidd.sampling import DenoisingNetwork

Precision = Literal["float32", "tf32", "bf16"]
"""float32; float32 with products rounded to 10 bits, on CUDA; bfloat16.

The output layer and x_theta are float32 in any case."""


class PipelineNetwork(DenoisingNetwork, HiddenAndHead, Protocol):
    """A network for samplers and likelihoods."""


def choose_precision(precision: Precision | None, device: torch.device) -> Precision:
    """Return the precision to compute in: by default bf16 on CUDA, float32 elsewhere."""
    if precision is None:
        return "bf16" if device.type == "cuda" else "float32"
    if precision not in get_args(Precision):
        allowed = ", ".join(get_args(Precision))
        raise ConfigError(f"precision must be one of {allowed}, got {precision!r}.")
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(
            f"precision tf32 is for NVIDIA GPUs, got the device {device.type}. Use float32 or bf16."
        )
    return precision


def in_precision(denoiser: Denoiser, precision: Precision, device: torch.device) -> PipelineNetwork:
    """Return the denoiser on a device with its backbone computing in `precision`.

    A GPU gets a copy, in bf16 if it computes in bf16, with a head whose rows of logits are aligned:
    the model itself stays as it was, to be saved. On other devices the model itself is moved.
    """
    if device.type == "cuda":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        placed = _copy_to_gpu(denoiser, device, dtype)
        return _Tf32(placed) if precision == "tf32" else placed
    denoiser.to(device)
    weights = list(denoiser.parameters())
    if precision == "float32":
        if any(w.dtype.itemsize == 2 and w.device.type == "cpu" for w in weights):
            denoiser.float()  # CPUs compute with 16 bits several times as slowly
        return denoiser
    if any(weight.dtype == torch.float16 for weight in weights):
        denoiser.float()  # autocast to bf16 has no layer norm for float16 weights on a CPU
    return _Bfloat16(denoiser)


def with_float32_head(network: PipelineNetwork) -> HiddenAndHead:
    """Return the network for likelihoods: logits are computed in float32 from any hidden states."""
    return network if not isinstance(network, Denoiser) else _Float32Head(network)


def _copy_to_gpu(denoiser: Denoiser, device: torch.device, dtype: torch.dtype) -> Denoiser:
    """Copy parameter by parameter, so that the host never holds another copy."""
    memo: dict[int, Any] = {}
    for tensor in (*denoiser.parameters(), *denoiser.buffers()):
        target = dtype if tensor.is_floating_point() else tensor.dtype
        moved = tensor.detach().to(device, target)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(moved, requires_grad=False) if is_parameter else moved
    copied = copy.deepcopy(denoiser, memo).eval()
    _pad_head(copied.backbone.head)
    return copied


def _pad_head(head: nn.Linear) -> None:
    """Add rows of zeros, so that rows of logits begin at aligned addresses."""
    padding = -len(head.weight) % HEAD_ROWS
    if not padding:
        return
    bias = cast("nn.Parameter | None", head.bias)
    head.weight = nn.Parameter(F.pad(head.weight, (0, 0, 0, padding)), requires_grad=False)
    if bias is not None:
        head.bias = nn.Parameter(F.pad(bias, (0, padding)), requires_grad=False)
    head.out_features += padding


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


@final
@dataclass(frozen=True)
class _Tf32:
    """A network whose backbone multiplies float32 matrices in TF32; the head does not."""

    denoiser: Denoiser

    @property
    def accepts_padding(self) -> bool:
        return self.denoiser.accepts_padding

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        with _tf32():
            return self.denoiser.hidden(z, t, valid)

    def head(self) -> Head:
        return self.denoiser.head()

    def logit_head(self) -> LogitHead:
        return self.denoiser.logit_head()

    def distribution(self, hidden: Tensor) -> Tensor:
        return self.denoiser.distribution(hidden)


@contextmanager
def _tf32() -> Generator[None]:
    """Let products of float32 matrices on CUDA use TF32, until the block ends."""
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        yield
    finally:
        settings.fp32_precision = before


@final
@dataclass(frozen=True)
class _Float32Head:
    denoiser: Denoiser

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        return self.denoiser.hidden(z, t).float()

    def head(self) -> Head:
        weight, bias = self.denoiser.head()
        return Head(weight.float(), bias.float())
