"""Count the kernels that a step launches on a GPU, and the times that the host waits for the GPU.

Every operator below autograd passes through a dispatch mode: `LaunchCounter` for fake tensors on
the CPU (`gidd plan`), and the pretended device of the tests. What is free and what waits is defined
here only.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALIGNMENT = 16
"""Rows of matrices must be multiples of this many bytes for the fastest kernels of a GPU."""

_PACKAGE = Path(__file__).parents[1]
_TORCH = str(Path(torch.__file__).parent)
_SHARDED_SHAPES = "_sharding_prop.py"
"""File of torch that runs operators on complete tensors to learn the shapes of sharded results."""

_WITHOUT_KERNEL = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "is_same_size",
    "new_empty",
    "new_empty_strided",
    "unsafe_split",
    "unsafe_split_with_sizes",
}
"""Operators of `aten` that launch nothing: allocations, and views that their schema does not show.

All other views are known from their schemas."""

_WAITING = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
"""Operators of `aten` after which the host knows a number that the GPU computed, always."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}

_NOT_FUSED = (*_PRODUCTS, "_scaled_dot_product", "convolution", "embedding", "_foreach_")
"""Beginnings of the names of operators that `torch.compile` calls as they are."""

# torch/aten/src/ATen/native/cuda/MultiTensorApply.cuh: entries of a chunk, chunks of a launch
_FOREACH_ENTRIES, _FOREACH_CHUNKS = 65_536, 320


def name_of_operator(func: Any) -> str:
    """Return the name of an operator without its overload; those of `aten` without a namespace."""
    return str(func._overloadpacket._qualified_op_name).removeprefix("aten::")


def num_launches(func: Any, args: Iterable[Any]) -> int:
    """Return the kernels that an operator launches: 0 for views and allocations, else usually 1.

    One that updates a list of tensors launches a kernel per 20 million entries. Operators with
    several kernels, such as sorting, count as one.
    """
    name = name_of_operator(func)
    is_view = func.is_view or torch.Tag.inplace_view in func.tags
    if is_view or name in _WITHOUT_KERNEL or func.namespace in ("profiler", "prim", "prims"):
        return 0
    if not name.startswith(("_foreach_", "_fused_adam")):
        return 1
    updated = next((arg for arg in args if isinstance(arg, list)), [])
    chunks = sum(-(-leaf.numel() // _FOREACH_ENTRIES) for leaf in _tensors(updated))
    return max(1, math.ceil(chunks / _FOREACH_CHUNKS))


def waits_for_device(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the host waits for the result of an operator on a GPU."""
    name = name_of_operator(func)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in _INDEXING:
        return name in _WAITING
    if not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
        return False
    # x[mask] = number is a masked_fill
    return len(args) < 3 or args[2].numel() > 1 or args[2].device.type != "cpu"


def misaligned_matrices(func: Any, args: Iterable[Any], result: object) -> list[str]:
    """Return the operands and results of a matrix product with rows of no multiple of 16 bytes."""
    if name_of_operator(func) not in _PRODUCTS:
        return []
    matrices = [m for m in _tensors([*args, result]) if m.dim() >= 2 and 1 not in m.shape[-2:]]
    return [_description(matrix) for matrix in matrices if _row_bytes(matrix) % ALIGNMENT]


def _row_bytes(matrix: Tensor) -> int:
    """Return the bytes from one row to the next; from one column for a transposed matrix."""
    rows, columns = matrix.stride()[-2:]
    return matrix.element_size() * (columns if rows == 1 and columns > 1 else rows)


def _description(matrix: Tensor) -> str:
    dtype = str(matrix.dtype).removeprefix("torch.")
    return f"{dtype} {list(matrix.shape)}, rows of {_row_bytes(matrix):,} bytes"


def _tensors(tree: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def calling_line(hidden: Iterable[str] = ()) -> str | None:
    """Return file and line that called an operator, outside of torch and the files to hide.

    None if torch itself did, to learn the shapes of sharded tensors: a GPU runs nothing then.
    """
    skipped = (_TORCH, __file__, "<", *hidden)
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        if frame.f_code.co_filename.endswith(_SHARDED_SHAPES):
            return None
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    name = file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else file.name
    return f"{name}:{frame.f_lineno}"


@final
@dataclass(kw_only=True)
class LaunchCounts:
    """Launches, waits and misaligned products, by the line that caused them and the operator."""

    launches: Counter[str] = field(default_factory=Counter[str])
    waits: Counter[str] = field(default_factory=Counter[str])
    misaligned: list[str] = field(default_factory=list[str])
    """Matrix products with an operand or result whose rows are not aligned."""

    hidden: tuple[str, ...] = ()
    """Files that are not named as the caller of an operator."""

    @property
    def num_launches(self) -> int:
        """Number of kernels launched."""
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        """Number of times that the host waited."""
        return self.waits.total()

    def reset(self) -> None:
        """Start from zero."""
        self.launches.clear()
        self.waits.clear()
        self.misaligned.clear()

    def add(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: object,
        *,
        also_waits: bool = False,
    ) -> None:
        """Count one call of an operator; `also_waits` if the caller knows that the host waits."""
        launched = num_launches(func, args)
        waited = also_waits or waits_for_device(func, args, kwargs)
        if not launched and not waited:
            return
        if (line := calling_line(self.hidden)) is None:
            return
        place = f"{line} {name_of_operator(func)}"
        if launched:
            self.launches[place] += launched
        if waited:
            self.waits[place] += 1
        if matrices := misaligned_matrices(func, args, result):
            self.misaligned.append(f"{place}: {'; '.join(matrices)}")

    def report(self, top: int = 20) -> str:
        """Return the totals and the lines that cause the most, for messages."""
        parts = [f"{self.num_launches:,} launches, {self.num_waits:,} waits"]
        parts[0] += f", {len(self.misaligned):,} misaligned matrix products"
        for title, counter in (
            ("waits", self.waits),
            ("launches", self.launches),
            ("misaligned", Counter(self.misaligned)),
        ):
            parts += [f"{n:8,} {title}  {place}" for place, n in counter.most_common(top)]
        return "\n".join(parts)


@final
class LaunchCounter(TorchDispatchMode):
    """Count the operators of code that runs on fake tensors on the CPU, as if on a GPU.

    Copies between devices are not seen. Numbers that are read one after the other are one wait:
    `tolist` of a fake tensor reads each on its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = LaunchCounts()
        self.is_compiled = False
        """Whether `torch.compile` fuses operators. It is assumed to make one kernel of those that
        work on the same number of entries between two matrix products."""

        self._fused_sizes: set[int] = set()
        self._last: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on its local tensors are dispatched again
        result = func(*args, **(kwargs or {}))
        is_read = func is torch.ops.aten._local_scalar_dense.default
        is_launch = num_launches(func, args) > 0
        if not (is_read and self._last is func) and not (is_launch and self._is_fused(func, args)):
            self.counts.add(func, args, kwargs or {}, result)
        if is_read or is_launch:
            self._last = func
        return result

    def _is_fused(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether an operator is part of a kernel that was counted."""
        name = name_of_operator(func)
        if name == "add_":  # adds a gradient to that of an earlier micro-batch
            return False
        if not self.is_compiled or func.namespace != "aten" or name.startswith(_NOT_FUSED):
            self._fused_sizes.clear()
            return False
        size = max((tensor.numel() for tensor in _tensors(args)), default=0)
        is_counted = size in self._fused_sizes
        self._fused_sizes.add(size)
        return is_counted
