"""An unbiased estimate of the NELBO of a text, including its boundary terms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.allowed import SEED, integer, require_arguments
from gidd.diffusion.elbo import prior_kl, reconstruction
from gidd.diffusion.fused import fused_loss
from gidd.diffusion.process import noise, sample_prior
from gidd.diffusion.randomness import Stream, random_integers, uniforms
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import TRAINING_EPS, stratify
from gidd.models import Head
from gidd.sampling.network import DenoisingNetwork, require_finite_predictions

if TYPE_CHECKING:
    from jaxtyping import Float, Int

ESTIMATOR = (
    "NELBO = integral of Eq. 14 over [1e-4, 1 - 1e-4], reconstruction at 1e-4 and KL of the first "
    "step from the prior. In each repetition the integral is a sum over times t = sin^2(theta), "
    "evenly spaced in theta with a common random shift, with one noisy text per time; the estimate "
    "is unbiased. Texts longer than the context are split into parts that are scored independently "
    "and added up."
)


class Estimate(NamedTuple):
    """A NELBO in nats, its standard error, and the number of forward passes."""

    nelbo: float
    standard_error: float
    calls: int


@torch.no_grad()
def estimate(
    network: DenoisingNetwork,
    head: Head,
    schedule: MixingSchedule,
    parts: Sequence[Int[Tensor, "1 L"]],
    *,
    seed: int,
    nodes: int,
    repeats: int,
) -> Estimate:
    """Return the summed NELBO of all parts of a text: `repeats` estimates at `nodes` times each."""
    remedy = "The standard error is estimated from the repeats; the default is 4."
    require_arguments(
        seed=(seed, SEED),
        nodes=(nodes, integer(1, 1_000_000, "The default is 32.")),
        repeats=(repeats, integer(2, 1_000_000, remedy)),
    )
    texts = [Likelihood(network, head, schedule, x, seed, i) for i, x in enumerate(parts)]
    draws = [sum(text.draw(nodes, repeat) for text in texts) for repeat in range(repeats)]
    require_finite_predictions(all(map(math.isfinite, draws)))
    error = statistics.stdev(draws) / math.sqrt(repeats)
    return Estimate(statistics.mean(draws), error, len(parts) * repeats * (nodes + 2))


@final
@dataclass(frozen=True)
class Likelihood:
    """Estimates the NELBO of one text under a network and its schedule."""

    network: DenoisingNetwork
    head: Head
    schedule: MixingSchedule
    x: Int[Tensor, "1 L"]
    """The text."""

    seed: int
    index: int
    """Index of the text; with the seed it determines times and noise."""

    def draw(self, nodes: int, repeat: int) -> float:
        """Return one estimate of the NELBO in nats, from nodes + 2 forward passes."""
        start = math.asin(math.sqrt(TRAINING_EPS))
        width = math.pi / 2 - 2 * start
        zero = torch.zeros(1, dtype=torch.int64, device=self.x.device)
        shift = uniforms(self.seed, Stream.TIMES, repeat, zero + self.index, zero).squeeze()
        slot = torch.arange(nodes, dtype=torch.float32, device=self.x.device)
        theta = start + width * stratify(shift, slot, nodes, eps=0.0)
        first = repeat * (nodes + 1)  # noise index of this repetition's first text
        total = self._boundary_terms(first + nodes)
        for node, angle in enumerate(theta):
            integrand = self._integrand(angle.sin().square()[None], first + node)
            total += float((2 * angle).sin()) * width / nodes * integrand
        return total

    def _integrand(self, t: Float[Tensor, " 1"], step: int) -> float:
        z = noise(self.schedule, t, self.x, self._random(Stream.NOISE, step))
        unused = torch.zeros(self.x.shape, device=t.device)
        hidden = self.network.hidden(z, t)
        _, weight, *terms = fused_loss(
            self.schedule, t, self.x, z, hidden, *self.head, loss_weight=unused
        )
        return float((weight * sum(terms)).sum())

    def _boundary_terms(self, step: int) -> float:
        """Return the terms outside [eps, 1 - eps]: reconstruction and prior."""
        one = torch.ones(1, device=self.x.device)
        early, late = TRAINING_EPS * one, (1 - TRAINING_EPS) * one
        z = noise(self.schedule, early, self.x, self._random(Stream.NOISE, step))
        below = reconstruction(self.schedule, early, self.x, z, self._x_theta(z, early))
        z = sample_prior(self.schedule, self._random(Stream.PRIOR, step))
        above = prior_kl(self.schedule, late, self.x, self._x_theta(z, one))
        return float(below.sum() + above.sum())

    def _x_theta(self, z: Tensor, t: Tensor) -> Tensor:
        return self.network.distribution(self.network.hidden(z, t))

    def _random(self, stream: Stream, step: int) -> Tensor:
        device = self.x.device
        sample = torch.tensor([self.index], device=device)
        position = torch.arange(self.x.shape[1], device=device)
        return random_integers(self.seed, stream, step, sample, position)
