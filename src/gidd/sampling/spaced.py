"""Select positions with a minimum distance between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.common.allowed import integer
from gidd.common.devices import kind_of, positions

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped

DISTANCE = integer(
    1,
    fix="It is the minimum distance between positions changed in one step: 1 allows all of them, "
    "2 every other one.",
)
"""Allowed distances between positions that are changed together."""


def top_spaced(
    score: Shaped[Tensor, "B L"], allowed: Bool[Tensor, "B L"], num: int, distance: int
) -> Bool[Tensor, "B L"]:
    """Select up to `num` allowed positions by score, any two at least `distance` apart.

    Greedy: take the highest score, then the highest of those far enough from it, and so on.
    """
    position = positions(score.shape[1], score.device)
    lowest = -torch.inf if score.is_floating_point() else torch.iinfo(score.dtype).min
    chosen = torch.zeros_like(allowed)
    for _ in range(min(num, score.shape[1])):
        best = torch.where(allowed, score, lowest).argmax(-1, keepdim=True)
        chosen |= (position == best) & allowed
        allowed = allowed & ((position - best).abs() >= distance)
        if kind_of(allowed) == "cpu" and not allowed.any():  # a GPU would be waited for
            break
    return chosen


def every_nth(distance: int, offset: Int[Tensor, " B"], length: int) -> Bool[Tensor, "B L"]:
    """Select the positions that equal `offset` modulo `distance`."""
    position = torch.arange(length, device=offset.device)
    return (position - offset[:, None]) % distance == 0
