"""The device to compute on, and operators of torch that have a kernel for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gidd.errors import ConfigError

_acting_as: ContextVar[str | None] = ContextVar("acting_as", default=None)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return a device by its name, such as "cuda:1", or the fastest one for None.

    Raises:
        ConfigError: The device is not available on this machine.
    """
    fastest = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    available = list(dict.fromkeys(("cpu", fastest.type)))
    if fastest.type != "cpu":
        available += [f"{fastest.type}:{i}" for i in range(torch.accelerator.device_count())]
    if device is not None and str(device) not in available:
        raise ConfigError(
            f"device must be {' or '.join(available)} on this machine with this build of torch, "
            f"got {device}. Omit it to use the fastest."
        )
    return torch.device(device or fastest.type)


def has_bf16(device: torch.device) -> bool:
    """Whether bfloat16 is fast: on CUDA, and on CPUs with instructions for it."""
    if device.type != "cpu":
        return device.type == "cuda"
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    checks = [getattr(torch.cpu, name, None) for name in names]
    return any(check is not None and check() for check in checks)


def device_type(tensor: Tensor) -> str:
    """Return the type of a tensor's device, or inside of `acting_as` the type that it names."""
    faked = None if torch.compiler.is_compiling() else _acting_as.get()
    return faked or tensor.device.type


@contextmanager
def acting_as(kind: str) -> Generator[None]:
    """Compute as on another type of device: `gidd plan` traces the step of a GPU on the CPU."""
    token = _acting_as.set(kind)
    try:
        yield
    finally:
        _acting_as.reset(token)


def has_kernels(tensor: Tensor) -> bool:
    """Whether Triton kernels compute on a tensor's device: on CUDA, with the extra `gpu`."""
    return device_type(tensor) == "cuda" and (_acting_as.get() is not None or _has_triton())


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def positions(length: int, device: torch.device) -> Tensor:
    """Return arange(length)."""
    return constant_on(_positions, device, length)


def _positions(device: torch.device, length: int) -> Tensor:
    return torch.arange(length, device=device)


def constant_on(compute: Callable[..., Any], device: torch.device, *arguments: float) -> Any:
    """Return `compute(device, *arguments)`, cached on GPUs to save kernel launches."""
    return (_kept_on_gpu(compute) if device.type == "cuda" else compute)(device, *arguments)


@cache
def _kept_on_gpu(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lru_cache(maxsize=64)(torch.inference_mode(False)(compute))  # for training as well


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy numbers to a device, as `copy_to` does."""
    return copy_to(torch.tensor(values, dtype=dtype), device)


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device; the host does not wait for CUDA."""
    if device.type == "cuda":  # which reads pinned memory when it gets there
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_LIBRARY = torch.library.Library("gidd", "DEF")


def define_kernel(
    schema: str,
    *,
    definition: Callable[..., Any],
    launch: Callable[..., Any] | None = None,
    shapes: Callable[..., Any],
) -> Callable[..., Any]:
    """Define the operator `gidd::<name>` of a schema such as `twice(Tensor x) -> Tensor`.

    `definition` computes it on the CPU, `launch` on CUDA, by default the definition compiled by
    torch; `shapes` returns empty tensors.
    """

    @cache
    def compiled() -> Callable[..., Any]:
        return torch.compile(definition, dynamic=True)

    def launch_compiled(*arguments: Any) -> Any:  # at a call: the compiler takes a second to load
        return compiled()(*arguments)

    name = _LIBRARY.define(schema)
    _LIBRARY.impl(name, definition, "CPU")
    _LIBRARY.impl(name, launch or launch_compiled, "CUDA")
    torch.library.register_fake(f"gidd::{name}", shapes, lib=_LIBRARY)
    return getattr(torch.ops.gidd, name).default
