"""Tensors that say they are on `cuda:0` and hold their numbers on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")

aten = torch.ops.aten
_WITH_OUT_DTYPE = {  # float32 products of bf16 matrices, which torch has on CUDA only
    aten.mm.dtype: aten.mm.default,
    aten.mm.dtype_out: aten.mm.out,
    aten.bmm.dtype: aten.bmm.default,
    aten.bmm.dtype_out: aten.bmm.out,
    aten.addmm.dtype: aten.addmm.default,
    aten.addmm.dtype_out: aten.addmm.out,
}


class DeviceError(RuntimeError):
    """An operator that a GPU refuses or computes very slowly."""


class PretendedTensor(Tensor):
    """A tensor on `cuda:0`; its numbers are in `values`, on the CPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendedTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=CUDA,
        )
        tensor.values = values
        return tensor

    def __repr__(self) -> str:
        return f"PretendedTensor({self.values})"

    def tolist(self) -> list:
        """Copy to the host; torch's own needs the memory of the tensor."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:  # `nn.Parameter` calls it
            return cls(args[0].values)
        raise DeviceError(f"{func} of a pretended tensor outside of pretended_cuda()")


def by_device(tree: object) -> tuple[list[PretendedTensor], list[Tensor]]:
    """Return the tensors on the pretended device and those on the CPU."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
    return on_device, [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor)]


def run_on_cpu(func, args: tuple, kwargs: dict) -> object:
    """Call an operator with the values of its arguments."""
    args, kwargs = tree_map(values_of, args), tree_map(values_of, kwargs)
    if kwargs.get("device") is not None:
        kwargs["device"] = CPU
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    if func in _WITH_OUT_DTYPE:
        *matrices, dtype = args
        args = [matrix.to(dtype) for matrix in matrices]
        func = _WITH_OUT_DTYPE[func]
    return func(*args, **kwargs)


def values_of(leaf: object) -> object:
    return leaf.values if isinstance(leaf, PretendedTensor) else leaf


def put_on_device(result: object, arguments: list[PretendedTensor]) -> object:
    """Wrap the tensors of a result; those that were changed in place are arguments."""
    changed = {id(tensor.values): tensor for tensor in arguments}

    def put(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        tensor = changed.get(id(leaf))
        if tensor is not None and tensor.shape != leaf.shape:
            raise DeviceError(f"pretended tensors cannot be resized, {tensor.shape} was")
        return PretendedTensor(leaf) if tensor is None else tensor

    return tree_map(put, result)


@contextmanager
def borrowed_guard() -> Iterator[None]:
    """Give CUDA devices the guard of the meta device, which does nothing.

    A build of torch without CUDA has none, and autograd and indexing need one.
    """
    folder = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libc10.*"))))
    guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # c10/core/DeviceType.h
    own, guards[cuda] = guards[cuda], guards[meta]
    try:
        yield
    finally:
        guards[cuda] = own
