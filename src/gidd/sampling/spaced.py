"""Choosing positions that keep a distance from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped


def top_spaced(
    score: Shaped[Tensor, "B L"], allowed: Bool[Tensor, "B L"], number: int, distance: int
) -> Bool[Tensor, "B L"]:
    """Up to `number` allowed positions of the highest score, any two at least `distance` apart.

    Greedy: the best first, then the best of those far enough from it, and so on.
    """
    position = torch.arange(score.shape[1], device=score.device)
    lowest = -torch.inf if score.is_floating_point() else torch.iinfo(score.dtype).min
    chosen = torch.zeros_like(allowed)
    for _ in range(min(number, score.shape[1])):
        best = torch.where(allowed, score, lowest).argmax(-1, keepdim=True)
        taken = (position == best) & allowed
        chosen = chosen | taken
        near = (position - best).abs() < distance
        allowed = allowed & ~near
        if not allowed.any():
            break
    return chosen


def every(distance: int, offset: Int[Tensor, " B"], length: int) -> Bool[Tensor, "B L"]:
    """The positions offset, offset + distance, offset + 2 distance, ... modulo `distance`."""
    position = torch.arange(length, device=offset.device)
    return (position - offset[:, None]) % distance == 0


def require_distance(distance: int) -> None:
    """Refuse distances that would let a position be chosen twice."""
    if distance < 1:
        raise ConfigError(
            f"distance must be at least 1, got {distance}. Positions changed in one call are at "
            "least this far apart: 1 is all of them, 2 every other one."
        )
