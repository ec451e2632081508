"""Operators of torch that have a kernel for GPUs beside their definition.

A kernel is one launch in a profile and one step of a trace. Its definition in plain torch runs on
every other device, so that the same code can be counted and tested without a GPU.
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
    """Define the operator `gidd::<name>`, and return it.

    Args:
        schema: Name and arguments, as in torch: `twice(Tensor x) -> Tensor`.
        definition: Computes it with torch operators, on tensors of the CPU.
        launch: Computes it with a kernel, on tensors of CUDA.
        shapes: Returns empty tensors of the right shapes, for tensors without data.
    """
    name = _LIBRARY.define(schema)
    _LIBRARY.impl(name, definition, "CPU")
    _LIBRARY.impl(name, launch, "CUDA")
    torch.library.register_fake(f"gidd::{name}", shapes, lib=_LIBRARY)
    return getattr(torch.ops.gidd, name).default
