"""Numeric precision of the network, and its place on a device."""

import copy
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.config.allowed import choice, require_arguments
from gidd.common.terminal import shorten
from gidd.diffusion.loss import HEAD_ROWS, HiddenAndHead
from gidd.errors import ConfigError
from gidd.models import Denoiser, Head
from gidd.models.weights import require_finite
from gidd.sampling import DenoisingNetwork

Precision = Literal["float32", "tf32", "bf16"]
"""float32; float32 with products rounded to 10 bits, on CUDA; bfloat16.

The output layer and x_theta are float32 in any case."""

_Network = TypeVar("_Network", bound=nn.Module)


class PipelineNetwork(DenoisingNetwork, HiddenAndHead, Protocol):
    """A network for samplers and likelihoods."""


_PRECISIONS: dict[object, Precision] = {
    torch.float32: "float32",
    torch.bfloat16: "bf16",
    "bfloat16": "bf16",
    **{name: name for name in get_args(Precision)},
}


def precision_of(dtype: torch.dtype | str | None, precision: Precision | None) -> Precision | None:
    """Return the precision that one of two arguments names, `dtype` as torch does; or None."""
    if dtype is None or dtype == "auto":
        return precision
    if precision is not None:
        raise ConfigError(f"dtype must be left out with precision, got {dtype} and {precision}.")
    if dtype not in _PRECISIONS:
        names = "torch.float32 or torch.bfloat16"
        raise ConfigError(f"dtype must be {names}, got {shorten(dtype)}.")
    return _PRECISIONS[dtype]


def choose_precision(precision: Precision | None, device: torch.device) -> Precision:
    """Return the precision to compute in: by default bf16 on CUDA, float32 elsewhere."""
    if precision is None:
        return "bf16" if device.type == "cuda" else "float32"
    require_arguments(precision=(precision, choice(get_args(Precision))))
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(f"precision tf32 is for NVIDIA GPUs, got the device {device.type}.")
    return precision


def share_weights(denoiser: Denoiser) -> Denoiser:
    """Return a copy for inference with the same weights in memory; the given one is not changed."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in denoiser.buffers()}
    for weight in denoiser.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    return copied(denoiser, memo).eval()


def copied(network: _Network, memo: dict[int, Any] | None = None) -> _Network:
    """Return a deep copy of a network; `memo` has what is shared, by the `id` of the original."""
    try:
        return copy.deepcopy(network, memo)
    except Exception as error:  # of any network
        message = f"the network must be one that copy.deepcopy can copy: {error}. Remove the cause."
        raise ConfigError(message) from error


def convert(denoiser: Denoiser, precision: Precision, device: torch.device) -> None:
    """Move a denoiser to a device in place, with weights that it computes with in `precision`.

    For a GPU nothing changes: `in_precision` copies.
    """
    if device.type == "cuda":
        return
    denoiser.to(device)
    dtypes = {weight.dtype for weight in denoiser.parameters()}
    # CPUs compute with 16 bits several times as slowly; autocast has no layer norm for float16
    is_slow = precision == "float32" and device.type == "cpu" and torch.bfloat16 in dtypes
    is_lacking = torch.float16 in dtypes and (precision == "bf16" or device.type == "cpu")
    if is_slow or is_lacking:
        denoiser.float()


def in_precision(denoiser: Denoiser, precision: Precision, device: torch.device) -> PipelineNetwork:
    """Return the denoiser on a device with its backbone computing in `precision`.

    A GPU gets a copy, in bf16 if it computes in bf16, with a head whose rows of logits are aligned:
    the model itself stays as it was, to be saved. On other devices the model itself is moved.

    Raises:
        CheckpointError: A weight is NaN or infinite.
    """
    require_finite(dict(denoiser.named_parameters()), "the model")
    if device.type == "cuda":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        placed = _copy_to_gpu(denoiser, device, dtype)
        return cast(PipelineNetwork, _InMode(placed, _tf32)) if precision == "tf32" else placed
    convert(denoiser, precision, device)
    return denoiser if precision == "float32" else cast(PipelineNetwork, _InMode(denoiser, _bf16))


def with_float32_head(network: PipelineNetwork) -> HiddenAndHead:
    """Return the network for likelihoods: logits are computed in float32 from any hidden states."""
    if not isinstance(network, Denoiser) or not network.has_linear_head:
        return network
    return _Float32Head(network)


def _copy_to_gpu(denoiser: Denoiser, device: torch.device, dtype: torch.dtype) -> Denoiser:
    """Copy parameter by parameter, so that the host never holds another copy.

    Buffers, such as rotary frequencies, keep their precision.
    """
    memo: dict[int, Any] = {}
    for parameter in denoiser.parameters():
        moved = parameter.detach().to(device, dtype)
        memo[id(parameter)] = nn.Parameter(moved, requires_grad=False)
    for buffer in denoiser.buffers():
        memo[id(buffer)] = buffer.to(device)
    copied = copy.deepcopy(denoiser, memo).eval()
    copied.backbone.head = _padded_head(copied.backbone.head)
    return copied


def _padded_head(head: nn.Linear) -> nn.Linear:
    """Return a head with rows of zeros at the end, so that rows of logits are aligned.

    It has a weight of its own, also if the weight of the given head is the embedding.
    """
    padding = -len(head.weight) % HEAD_ROWS
    if not padding:
        return head
    bias = cast("nn.Parameter | None", head.bias)
    with torch.device("meta"):
        padded = nn.Linear(head.in_features, len(head.weight) + padding, bias is not None)
    padded.weight = nn.Parameter(F.pad(head.weight, (0, 0, 0, padding)), requires_grad=False)
    if bias is not None:
        padded.bias = nn.Parameter(F.pad(bias, (0, padding)), requires_grad=False)
    return padded


@dataclass(frozen=True)
class _InMode:
    """A network whose backbone computes in bf16 or TF32; the output layer stays in float32."""

    denoiser: Denoiser
    mode: Callable[[str], AbstractContextManager[object]]
    """From the type of a device to the context of the backbone."""

    def hidden(self, z: Tensor, t: Tensor, *arguments: Any, **context: Any) -> Tensor:
        with self.mode(z.device.type):
            return self.denoiser.hidden(z, t, *arguments, **context)

    def keys_and_values(self, x: Tensor, context: Any) -> Tensor:
        with self.mode(x.device.type):
            return self.denoiser.keys_and_values(x, context)

    def __getattr__(self, name: str) -> Any:  # the rest of `PipelineNetwork`
        return getattr(self.denoiser, name)


_bf16 = partial(torch.autocast, dtype=torch.bfloat16)
_tf32_lock = Lock()
_tf32_users: list[str] = []
"""One entry per thread that computes in TF32: the flag of torch before the first of them."""


@contextmanager
def _tf32(device: str = "cuda") -> Generator[None]:
    """Let products of float32 matrices on CUDA use TF32, until the last thread leaves the block.

    The flag is one for the whole process: float32 products of other threads, and the head, are
    rounded too while any thread is inside.
    """
    settings: Any = torch.backends.cuda.matmul
    with _tf32_lock:
        _tf32_users.append(_tf32_users[0] if _tf32_users else settings.fp32_precision)
        settings.fp32_precision = "tf32"
    try:
        yield
    finally:
        with _tf32_lock:
            before = _tf32_users.pop()
            if not _tf32_users:
                settings.fp32_precision = before


@dataclass(frozen=True)
class _Float32Head:
    denoiser: Denoiser

    def hidden(self, z: Tensor, t: Tensor, **blocks: Any) -> Tensor:
        return self.denoiser.hidden(z, t, **blocks).float()

    def head(self) -> Head:
        weight, bias = self.denoiser.head()
        return Head(weight.float(), bias.float())
