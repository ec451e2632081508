"""Derivatives in time of functions that a user gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def value_and_slope(function: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """function(t) and its derivative, for a function that acts on each time by itself."""
    t = t.contiguous()  # an expanded tensor cannot carry a tangent
    value, slope, *_ = torch.func.jvp(function, (t,), (torch.ones_like(t),))
    return value, slope
