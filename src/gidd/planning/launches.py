"""Count the kernels that a step would launch on a GPU, and its host-device synchronizations.

`LaunchCounter` sees every operator below autograd, on fake tensors on the CPU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ALIGNMENT = 16
"""Rows of matrices must be multiples of this many bytes for the fastest kernels of a GPU."""

_NO_KERNEL = {
    *("_unsafe_view", "is_same_size", "unsafe_split", "unsafe_split_with_sizes", "empty"),
    *("empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
}
"""Operators of `aten` that launch nothing: allocations, and views that their schema does not show.

All other views are known from their schemas."""

_SYNCING = {
    *("_local_scalar_dense", "_unique", "_unique2", "bincount", "equal", "is_nonzero", "item"),
    *("masked_select", "nonzero", "nonzero_numpy", "unique_consecutive", "unique_dim"),
    "unique_dim_consecutive",
}
"""Operators of `aten` after which the host knows a number that the GPU computed, always."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}

_NOT_FUSED = (*_PRODUCTS, "_scaled_dot_product", "convolution", "embedding", "_foreach_")
"""Prefixes of the names of operators that `torch.compile` calls as they are."""

# torch/aten/src/ATen/native/cuda/MultiTensorApply.cuh: entries of a chunk, chunks of a launch
_FOREACH_ENTRIES, _FOREACH_CHUNKS = 65_536, 320


def operator_name(func: Any) -> str:
    """Return the name of an operator without its overload, and without the namespace `aten`."""
    return str(func._overloadpacket._qualified_op_name).removeprefix("aten::")


def num_launches(func: Any, args: Iterable[Any]) -> int:
    """Return the kernels that an operator launches: 0 for views and allocations, else usually 1.

    An operator on a list of tensors launches a kernel per 20 million entries. Operators with
    several kernels, such as sorting, count as one.
    """
    name = operator_name(func)
    is_view = func.is_view or torch.Tag.inplace_view in func.tags
    if is_view or name in _NO_KERNEL or func.namespace in ("profiler", "prim", "prims"):
        return 0
    if not name.startswith(("_foreach_", "_fused_adam")):
        return 1
    updated = next((arg for arg in args if isinstance(arg, list)), [])
    chunks = sum(-(-leaf.numel() // _FOREACH_ENTRIES) for leaf in _tensors(updated))
    return max(1, math.ceil(chunks / _FOREACH_CHUNKS))


def synchronizes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the host waits for the result of an operator on a GPU."""
    name = operator_name(func)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in _INDEXING:
        return name in _SYNCING
    if not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
        return False
    # x[mask] = number is a masked_fill
    return len(args) < 3 or args[2].numel() > 1 or args[2].device.type != "cpu"


def misaligned_matrices(func: Any, args: Iterable[Any], result: object) -> list[Tensor]:
    """Return the operands and results of a matrix product with rows of no multiple of 16 bytes."""
    if operator_name(func) not in _PRODUCTS:
        return []
    matrices = [m for m in _tensors([*args, result]) if m.dim() >= 2 and 1 not in m.shape[-2:]]
    return [matrix for matrix in matrices if row_bytes(matrix) % _ALIGNMENT]


def row_bytes(matrix: Tensor) -> int:
    """Return the bytes from one row to the next; from one column for a transposed matrix."""
    rows, columns = matrix.stride()[-2:]
    return matrix.element_size() * (columns if rows == 1 and columns > 1 else rows)


def infers_sharding() -> bool:
    """Whether torch calls an operator only to learn the shapes of sharded tensors."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename.endswith("_sharding_prop.py"):
            return True
        frame = frame.f_back
    return False


def _tensors(tree: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


@final
class LaunchCounter(TorchDispatchMode):
    """Count the operators of code that runs on fake tensors on the CPU, as if on a GPU.

    Copies between devices are not seen. Numbers that are read one after the other are one wait:
    `tolist` of a fake tensor reads each on its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = self.misaligned = 0
        self.is_compiled = False
        """Whether `torch.compile` fuses operators. It is assumed to make one kernel of those that
        work on the same number of entries between two matrix products."""

        self._fused_sizes: set[int] = set()
        self._last: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on its local tensors are dispatched again
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        launched = num_launches(func, args)
        is_read = func is torch.ops.aten._local_scalar_dense.default
        is_repeated = is_read and self._last is func
        if not is_repeated and not (launched and self._is_fused(func, args)):
            waits = synchronizes(func, args, kwargs)
            if (launched or waits) and not infers_sharding():
                self.launches += launched
                self.waits += waits
                self.misaligned += bool(misaligned_matrices(func, args, result))
        if is_read or launched:
            self._last = func
        return result

    def _is_fused(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether an operator is part of a kernel that was counted."""
        name = operator_name(func)
        if name == "add_":  # adds a gradient to that of an earlier micro-batch
            return False
        if not self.is_compiled or func.namespace != "aten" or name.startswith(_NOT_FUSED):
            self._fused_sizes.clear()
            return False
        size = max((tensor.numel() for tensor in _tensors(args)), default=0)
        is_counted = size in self._fused_sizes
        self._fused_sizes.add(size)
        return is_counted
