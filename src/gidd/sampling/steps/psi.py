"""Psi-samplers: reverse steps mixed with redraws from the data and renewed noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch

from gidd.common.config.allowed import number
from gidd.common.config.components import require_options
from gidd.diffusion.categorical import happens
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.ancestral import ReverseNoise, reverse_step

_PROBABILITY = number(lambda p: 0 <= p <= 1, "in [0, 1]", "0 is the ancestral sampler.")


@final
@dataclass(frozen=True)
class Psi:
    """Draw z_s from the Psi-posterior of Deschenaux et al. (arXiv 2602.21185), for every noise.

        (1 - renoise) p_theta(z_s | z_t) + renoise sum_x p(x | z_t) q_s(z_s | x)

    `renoise` is 1 - kappa of the paper. Both terms have the marginals of Z_s, so the mixture has
    them too, and the second one can change any token, also a mistake of an earlier step. p(x | z_t)
    is x_theta times q_t(z_t | x), normalised: the reverse step to time 0. It is close to certain
    near t = 0, so samples converge to the data with more steps. With s = t it is a corrector.
    """

    renoise: float = 0.1
    """Probability to redraw a token from the data and renew its noise."""

    @staticmethod
    def problems(renoise: float) -> Iterable[str]:
        """Yield one message per invalid option."""
        return _PROBABILITY.problems("renoise", renoise)

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Draw the tokens of time s."""
        renoise = torch.full_like(t, self.renoise)[:, None]
        restarts = happens(renoise, canvas.random(Stream.PLACE))
        return reverse_step(ReverseNoise(schedule, s, t, canvas), prediction, restarts)
