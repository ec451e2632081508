"""The times at which a likelihood is evaluated, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from gidd.diffusion.times import Nodes, paper_nodes, sine_midpoints, stratified_nodes


class TimeGrid(NamedTuple):
    """The times at which the integrand is evaluated in one repeat."""

    nodes: Callable[[int, float, Tensor], Nodes]
    """(number, eps, random shift of each text [B]) -> times and weights [B, T]."""

    has_ends: bool
    """Whether the ends are added: without them the estimate is not a bound."""

    is_coupled: bool
    """Whether the noise of the times of a repeat is coupled, see `likelihood.NelboEstimator`."""

    description: str


def _paper(num_nodes: int, eps: float, shift: Tensor) -> Nodes:
    nodes = paper_nodes(num_nodes, eps)
    return Nodes(*(part.to(shift.device).expand(len(shift), -1) for part in nodes))


GRIDS = {
    "sine": TimeGrid(
        sine_midpoints,
        True,
        True,
        "t = sin^2(y^2 pi/2) with y evenly spaced, folded and randomly shifted; noise of the "
        "times of a repeat coupled by rotations; reconstruction at eps and prior "
        "added; unbiased",
    ),
    "stratified": TimeGrid(
        stratified_nodes,
        True,
        False,
        "t evenly spaced with a common random shift, as in training; reconstruction at eps and "
        "prior added; unbiased",
    ),
    "paper": TimeGrid(
        _paper,
        False,
        False,
        "mean over t evenly spaced in [eps, 1 - eps], both ends included, without reconstruction "
        "and prior (App. F of the paper, 128 times); biased for p_uniform > 0",
    ),
}
"""Time grids by name."""
