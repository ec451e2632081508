"""Time derivatives of user-defined functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def value_and_slope(function: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """Return function(t) and its derivative, for an elementwise function of t."""
    import torch

    t = t.contiguous()  # an expanded tensor cannot carry a tangent
    value, slope, *_ = torch.func.jvp(function, (t,), (torch.ones_like(t),))
    return value, slope
