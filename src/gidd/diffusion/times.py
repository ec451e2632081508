"""Times for training, meshes for sampling, quadrature nodes and time grids for likelihoods."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.randomness import Indices, Stream, uniform_number
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float


def stratify(
    u: float | Tensor, slot: Indices, num_samples: int, eps: float = TRAINING_EPS, power: float = 1
) -> Float[Tensor, " B"]:
    """Low-discrepancy times: evenly spaced in [eps, 1 - eps], shifted by a uniform `u` (App. E).

    With another `power` than 1, evenly spaced numbers in [0, 1) are raised to it first: above 1,
    more times are close to 0.
    """
    _require_eps(eps)
    even = (slot / num_samples + u) % 1
    return eps + (1 - 2 * eps) * (even if power == 1 else even**power)


def time_weights(
    t: Float[Tensor, " B"], eps: float = TRAINING_EPS, power: float = 1.0
) -> Float[Tensor, " B"]:
    """Return the weights of an unbiased mean: uniform density over the density of `stratify`."""
    even = ((t - eps) / (1 - 2 * eps)).clamp_min(0) ** (1 / power)
    return power * even ** (power - 1)


def stratified_times(
    seed: int,
    step: int,
    slot: Indices,
    num_samples: int,
    eps: float = TRAINING_EPS,
    dtype: torch.dtype = torch.float32,
    *,
    power: float = 1.0,
) -> Float[Tensor, " B"]:
    """Training times of the samples at indices `slot` of a global batch of `num_samples`.

    The shift depends on (seed, step) only: all ranks and micro-batches draw from the same set.
    """
    u = uniform_number(seed, Stream.TIMES, step, bits=53 if dtype == torch.float64 else 24)
    return stratify(u, slot.to(dtype), num_samples, eps, power)


def even_times(num_steps: int) -> Float[Tensor, " T+1"]:
    """Times 1 = t_T > ... > t_0 = 0, evenly spaced: stopping at eps would leave random tokens."""
    return torch.linspace(1, 0, _require_steps(num_steps) + 1, dtype=torch.float64)


def sine_times(num_steps: int) -> Float[Tensor, " T+1"]:
    """Times from 1 to 0, evenly spaced in theta, t = sin^2(theta): shorter steps at both ends."""
    return (even_times(num_steps) * (math.pi / 2)).sin().square()


class Nodes(NamedTuple):
    """A quadrature rule: an integral over t is approximated by the sum of weight * integrand(t)."""

    t: Float[Tensor, "*B T"]
    weight: Float[Tensor, "*B T"]


MIDPOINTS = 0.25
"""Shift at which folded times are the midpoints of equal intervals, if their number is even."""


def sine_midpoints(
    num_nodes: int = 128, eps: float = TRAINING_EPS, shift: float | Float[Tensor, " B"] = MIDPOINTS
) -> Nodes:
    """Nodes for likelihoods over [eps, 1 - eps]: t = sin^2(theta) with theta proportional to y^2.

    y is uniform on [0, 1]. For hybrid noise with gamma = 1 the NELBO's integrand grows like
    t^(-1/2) at 0, which dt = sin(2 theta) dtheta cancels. The square places more nodes near 0,
    where noisy tokens are rare and have a large weight: for p_u > 0 that reduces the variance. Add
    the cost outside [eps, 1 - eps], `elbo.reconstruction` and `elbo.prior_kl`.

    The default is the midpoint rule in y; with a uniform random `shift` in [0, 1) the sum is
    unbiased. Values of y are folded, y = |1 - 2 (k / num_nodes + shift mod 1)|: the integrand is
    periodic in the shift, so the error decreases with the square of the number of nodes.
    """
    _require_eps(eps)
    start = math.asin(math.sqrt(eps))
    y = (1 - 2 * _evenly_spaced(num_nodes, shift)).abs()
    width = math.pi / 2 - 2 * start
    theta = start + width * y.square()
    return Nodes(theta.sin().square(), (2 * theta).sin() * (2 * width / num_nodes) * y)


def stratified_nodes(
    num_nodes: int, eps: float = TRAINING_EPS, shift: float | Float[Tensor, " B"] = 0.5
) -> Nodes:
    """Times of a training batch (App. E): evenly spaced in [eps, 1 - eps], with a common shift.

    Unbiased for a uniform random shift. For p_u > 0 the variance is large.
    """
    _require_eps(eps)
    t = eps + (1 - 2 * eps) * _evenly_spaced(num_nodes, shift)
    return Nodes(t, torch.full_like(t, (1 - 2 * eps) / num_nodes))


def paper_nodes(
    num_nodes: int = 128, eps: float = TRAINING_EPS, shift: Float[Tensor, " B"] | None = None
) -> Nodes:
    """The paper's benchmark recipe (App. F): times evenly spaced in [eps, 1 - eps], ends included.

    It is biased upwards for p_u > 0, because the integrand is largest at the first node, which has
    the weight of a full interval. `shift` is ignored, except that its length is the
    number of rows returned.
    """
    _require_eps(eps)
    t = torch.linspace(eps, 1 - eps, _require_steps(num_nodes), dtype=torch.float64)
    if shift is not None:
        t = t.to(shift.device).expand(len(shift), -1)
    return Nodes(t, torch.full_like(t, 1 / num_nodes))


def _evenly_spaced(num_nodes: int, shift: float | Tensor) -> Tensor:
    """Return (k + shift) / num_nodes modulo 1 in float64, [T] or [B, T]."""
    k = torch.arange(_require_steps(num_nodes), dtype=torch.float64)
    if isinstance(shift, Tensor):
        k, shift = k.to(shift.device), shift.double()[:, None]
    return (k + shift) / num_nodes % 1


def _require_steps(num_steps: int) -> int:
    if num_steps < 1:
        raise ConfigError(f"steps or nodes must be at least 1, got {num_steps}. 128 are common.")
    return num_steps


def _require_eps(eps: float) -> None:
    if not 0 <= eps < 0.5:
        raise ConfigError(
            f"eps must be in [0, 0.5), got {eps}. Times lie in [eps, 1 - eps]; the paper uses 1e-4."
        )


class TimeGrid(NamedTuple):
    """The times at which the integrand is evaluated in one repeat."""

    nodes: Callable[[int, float, Tensor], Nodes]
    """(number, eps, random shift of each text [B]) -> times and weights [B, T]."""
    has_ends: bool
    """Whether the ends are added: without them the estimate is not a bound."""
    is_coupled: bool
    """Whether the noise of the times of a repeat is coupled, see `gidd.diffusion.likelihood`."""
    description: str


GRIDS = {
    "sine": TimeGrid(
        sine_midpoints,
        True,
        True,
        "t = sin^2(y^2 pi/2) with y evenly spaced, folded and randomly shifted; noise of the "
        "times of a repeat coupled by rotations; reconstruction at eps and prior added; unbiased",
    ),
    "stratified": TimeGrid(
        stratified_nodes,
        True,
        False,
        "t evenly spaced with a common random shift, as in training; reconstruction at eps and "
        "prior added; unbiased",
    ),
    "paper": TimeGrid(
        paper_nodes,
        False,
        False,
        "mean over t evenly spaced in [eps, 1 - eps], both ends included, without reconstruction "
        "and prior (App. F of the paper, 128 times); biased for p_uniform > 0",
    ),
}
"""Time grids by name."""
