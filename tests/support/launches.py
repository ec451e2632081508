"""Kernel launches, host-device synchronizations and misaligned products, by the line of code."""

import math
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import gidd

_PACKAGE = Path(gidd.__file__).parent
_SKIPPED = (str(Path(torch.__file__).parent), __file__, "<")

_NO_KERNEL = {
    *("_unsafe_view", "is_same_size", "unsafe_split", "unsafe_split_with_sizes", "empty"),
    *("empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
}
"""Operators that launch nothing: allocations, and views that their schema does not show."""

_SYNCING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators after which the host knows a number that the GPU computed."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}

# torch/aten/src/ATen/native/cuda/MultiTensorApply.cuh: entries of a chunk times chunks of a launch
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
    if operator_name(func) not in _INDEXING:
        return kwargs.get("output_size") is None and not _SYNCING.isdisjoint(func.tags)
    if not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
        return False
    # x[mask] = number is a masked_fill
    return len(args) < 3 or args[2].numel() > 1 or args[2].device.type != "cpu"


def misaligned_matrices(func: Any, args: Iterable[Any], result: object) -> list[Tensor]:
    """Return the operands and results of a matrix product with rows of no multiple of 16 bytes."""
    if operator_name(func) not in _PRODUCTS:
        return []
    matrices = [m for m in _tensors([*args, result]) if m.dim() >= 2 and 1 not in m.shape[-2:]]
    return [matrix for matrix in matrices if row_bytes(matrix) % 16]  # slower on GPUs


def row_bytes(matrix: Tensor) -> int:
    """Return the bytes from one row to the next; from one column for a transposed matrix."""
    rows, columns = matrix.stride()[-2:]
    return matrix.element_size() * (columns if rows == 1 and columns > 1 else rows)


def infers_sharding() -> bool:
    """Whether torch calls an operator only to learn the shapes of sharded tensors."""
    names = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    return any(name.endswith("_sharding_prop.py") for name in names)


def _tensors(tree: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def calling_line(hidden: Iterable[str] = ()) -> str:
    """Return file and line that called an operator, outside of torch and the files to hide."""
    frame = sys._getframe(1)
    skipped = (*_SKIPPED, *hidden)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    name = file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else file.name
    return f"{name}:{frame.f_lineno}"


@dataclass(kw_only=True)
class LaunchCounts:
    """Launches, waits and misaligned products, by the line that caused them and the operator."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    misaligned: list[str] = field(default_factory=list)
    hidden: tuple[str, ...] = ()
    """Files that are not named as the caller of an operator."""

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def reset(self) -> None:
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
        waited = also_waits or synchronizes(func, args, kwargs)
        if (not launched and not waited) or infers_sharding():
            return
        place = f"{calling_line(self.hidden)} {operator_name(func)}"
        if launched:
            self.launches[place] += launched
        if waited:
            self.waits[place] += 1
        if matrices := misaligned_matrices(func, args, result):
            rows = [f"{m.dtype} {list(m.shape)}, rows of {row_bytes(m)} bytes" for m in matrices]
            self.misaligned.append(f"{place}: {'; '.join(rows)}")

    def report(self, top: int = 20) -> str:
        """The totals and the lines that cause the most, for messages."""
        parts = [f"{self.num_launches:,} launches, {self.num_waits:,} waits"]
        parts[0] += f", {len(self.misaligned):,} misaligned matrix products"
        for title, counter in (
            ("waits", self.waits),
            ("launches", self.launches),
            ("misaligned", Counter(self.misaligned)),
        ):
            parts += [f"{n:8,} {title}  {place}" for place, n in counter.most_common(top)]
        return "\n".join(parts)
