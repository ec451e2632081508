"""Operators of torch that have a kernel for GPUs beside their definition in plain torch.

A kernel is one launch in a profile and one step of a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("gidd", "DEF")


def define_kernel(
    schema: str,
    *,
    definition: Callable[..., Any],
    launch: Callable[..., Any],
    shapes: Callable[..., Any],
) -> Callable[..., Any]:
    """Define the operator `gidd::<name>` of a schema such as `twice(Tensor x) -> Tensor`.

    `definition` computes it on the CPU, `launch` on CUDA; `shapes` returns empty tensors.
    """
    name = _LIBRARY.define(schema)
    _LIBRARY.impl(name, definition, "CPU")
    _LIBRARY.impl(name, launch, "CUDA")
    torch.library.register_fake(f"gidd::{name}", shapes, lib=_LIBRARY)
    return getattr(torch.ops.gidd, name).default
