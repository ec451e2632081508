"""A CUDA device that is not there, to count launches and waits on a machine without a GPU.

Its tensors say that they are on `cuda:0` and hold their numbers on the CPU: code that depends on
data runs to its end, and mixing devices is an error as on a GPU.

    with pretended_cuda() as counts:
        batch = batch.to("cuda:0")
        counts.reset()
        model(batch)
    assert counts.num_launches <= 300, counts.report()

A launch is an operator that is neither a view nor an allocation; a wait is one whose result the
host needs, or a copy between host and device, except asynchronous ones of pinned memory. Operators
of the library, `gidd::...`, are one launch and run their CPU implementation.

Forward passes only: torch refuses a backward pass on a device for which it was not built.
`torch.compile` is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from support.launches import LaunchCounts, calling_line, num_launches, operator_name
from support.pretended_tensor import (
    CPU,
    CUDA,
    DeviceError,
    PretendedTensor,
    borrowed_guard,
    by_device,
    put_on_device,
    run_on_cpu,
    values_of,
)

MAX_FLOAT64 = 1024
"""Entries of the largest float64 tensor: many GPUs have 1/64 of the float32 speed in float64."""

_attend = torch.nn.functional.scaled_dot_product_attention
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


@contextmanager
def pretended_cuda(*, refuses_float64: bool = True) -> Iterator[LaunchCounts]:
    """Have a device `cuda:0`; count what is done on it. Skips the test if there is a real one.

    Args:
        refuses_float64: Raise `DeviceError` for float64 tensors of more than `MAX_FLOAT64` entries.
    """
    if torch.cuda.is_available():
        pytest.skip("cuda:0 is a real GPU; constants that the library keeps for it would mix")
    device = _PretendedDevice(MAX_FLOAT64 if refuses_float64 else math.inf)
    with ExitStack() as stack:
        stack.enter_context(borrowed_guard())
        for name, replacement in {
            "torch.accelerator.current_accelerator": lambda *_, **__: torch.device("cuda"),
            "torch.accelerator.device_count": lambda: 1,
            "torch.cuda._lazy_init": lambda: None,
            "torch.cuda.is_bf16_supported": lambda *_, **__: True,
            "torch.cuda.synchronize": lambda *_: device.wait("synchronize"),
            "torch.cuda.Event": lambda **_: _Event(device),
            "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
            "torch.Tensor.pin_memory": lambda tensor, *_: device.pin(tensor.clone()),
            "torch.Tensor.is_pinned": lambda tensor, *_: device.is_pinned(tensor),
            "torch.nn.functional.scaled_dot_product_attention": device.attend,
        }.items():
            stack.enter_context(patch(name, replacement))
        # torch.tensor(..., device="cuda:0") makes a tensor on the host and copies it, as seen here
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        stack.enter_context(device)
        yield device.counts


def move_to_pretended(module: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a module to the pretended device; return the module."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                moved = PretendedTensor(parameter.detach())
                part._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = PretendedTensor(buffer)
    return module


class _PretendedDevice(TorchDispatchMode):
    """Runs operators on the CPU, counts those on the device, and refuses what a GPU refuses."""

    def __init__(self, max_float64: float) -> None:
        super().__init__()
        self.counts = LaunchCounts(hidden=(__file__,))
        self.max_float64 = max_float64
        self._pinned: dict[int, Tensor] = {}  # by address; kept, so that no other tensor has it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        on_device, on_host = by_device([args, kwargs])
        self._refuse_mixed_devices(func, args, kwargs)
        result = run_on_cpu(func, args, kwargs)
        if kwargs.get("pin_memory"):
            self.pin(result)
        target = _target(func, args, kwargs, on_device)
        if on_device or target == CUDA:
            waits = self._waits_for_copy(func, args, kwargs, result, target)
            self.counts.add(func, args, kwargs, result, also_waits=waits)
        if target == CPU:
            return result
        self._refuse_float64(func, args, result)
        return put_on_device(result, on_device)

    def wait(self, name: str) -> None:
        """Count a wait that is no operator."""
        self.counts.waits[f"{calling_line((__file__,))} {name}"] += 1

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark memory on the host as page-locked."""
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor is in page-locked memory of the host."""
        on_host = not isinstance(tensor, PretendedTensor)
        return on_host and tensor.untyped_storage().data_ptr() in self._pinned

    def attend(self, query, key, value, **options):
        """Compute attention, which is one kernel on CUDA for every type and mask of the library."""
        if not isinstance(query, PretendedTensor):
            return _attend(query, key, value, **options)
        on_cpu = {name: values_of(option) for name, option in options.items()}
        with _disable_current_modes():
            result = _attend(query.values, key.values, value.values, **on_cpu)
        self.counts.launches[f"{calling_line((__file__,))} scaled_dot_product_attention"] += 1
        return PretendedTensor(result)

    def _waits_for_copy(self, func, args, kwargs, result, target) -> bool:
        """Whether an operator copies between host and device, and the host waits for the copy."""
        name = operator_name(func)
        if name in _INDEXING:
            return bool(by_device(args[1])[1])  # indices on the host are copied to the device
        if name == "copy_":
            (copy, source), non_blocking = args[:2], args[2:] == (True,)
        elif name == "_to_copy":
            source, copy, non_blocking = args[0], result, kwargs.get("non_blocking", False)
        else:
            return False
        is_upload = not isinstance(source, PretendedTensor)
        if is_upload == (target == CPU):
            return False  # on one device
        if is_upload:
            return not (non_blocking and self.is_pinned(source))
        # `to("cpu", non_blocking=True)` allocates pinned memory
        return not (non_blocking and (name == "_to_copy" or self.is_pinned(copy)))

    def _refuse_mixed_devices(self, func, args, kwargs) -> None:
        """Raise if an operator has tensors on both devices; single numbers may be on the host."""
        name = operator_name(func)
        if name in ("_to_copy", "copy_"):
            return
        on_device, on_host = by_device([args, kwargs])
        if name in _INDEXING and isinstance(args[0], PretendedTensor):
            _, on_host = by_device(args[2:])
        if name not in ("cat", "stack"):
            on_host = [tensor for tensor in on_host if tensor.dim()]
        if on_device and on_host:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in on_host)
            self._refuse(func, f"mixes tensors on cuda:0 with tensors on the CPU: {shapes}")

    def _refuse_float64(self, func, args, result) -> None:
        """Raise if an operator computes many float64 numbers."""
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        sizes = [tensor.numel() for tensor in tensors if tensor.dtype == torch.float64]
        if num_launches(func, args) and max(sizes, default=0) > self.max_float64:
            self._refuse(func, f"computes {max(sizes):,} float64 numbers; at most {MAX_FLOAT64:,}")

    def _refuse(self, func, reason: str) -> None:
        raise DeviceError(f"{calling_line((__file__,))} {operator_name(func)} {reason}")


class _Event:
    """Stands in for `torch.cuda.Event`, which needs a GPU."""

    def __init__(self, device: _PretendedDevice) -> None:
        self._device = device

    def record(self, stream: object = None) -> None:
        """Launch nothing."""

    def synchronize(self) -> None:
        """Wait."""
        self._device.wait("Event.synchronize")


def _target(func, args, kwargs, on_device: list[PretendedTensor]) -> torch.device:
    """Return the device of an operator's result."""
    if operator_name(func) == "copy_":
        return CUDA if isinstance(args[0], PretendedTensor) else CPU
    if (device := kwargs.get("device")) is not None:
        return CPU if torch.device(device).type == "cpu" else CUDA
    return CUDA if on_device else CPU
