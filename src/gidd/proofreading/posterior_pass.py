"""The posterior of every token of found text: one forward pass over each window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

from torch import Tensor

from gidd.diffusion.error_rate import time_at_error_rate
from gidd.proofreading.window_reader import WindowReader, WindowTokens
from gidd.sampling.correctors.posterior import is_replaced, likelihood_of, read_posterior
from gidd.sampling.jobs import Jobs
from gidd.sampling.prediction import Prediction

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class WindowPosterior(NamedTuple):
    """The posterior of the tokens of one window; 0 at positions that were not judged."""

    found: Float[Tensor, " L"]
    """Probability that the token of the text is right."""

    x_theta: Float[Tensor, " L"]
    """Probability of the token given all other tokens of the window."""

    tokens: Int[Tensor, "L A"]
    """The A most likely other tokens, the best one first."""

    probabilities: Float[Tensor, "L A"]
    """The posterior probability of each of them."""

    def replaced(self, min_confidence: float | None = None) -> Bool[Tensor, " L"]:
        """Return where the best other token replaces the one of the text.

        By default it does if it is more likely, which minimises the expected number of wrong
        tokens. With `min_confidence`, it must also be right with at least that probability.
        """
        return is_replaced(self.found, self.probabilities[:, 0], min_confidence)


@final
@dataclass(frozen=True, eq=False)
class PosteriorPass:
    """Computes p(x_i | Z) for the tokens of windows, given the fraction of wrong tokens.

        judge = PosteriorPass(WindowReader(pipe.engine, processors=processors))
        posteriors = run_job(lambda jobs: judge(jobs, windows, error_rate=0.05))
        for window, posterior in zip(windows, posteriors):
            new = torch.where(posterior.replaced(), posterior.tokens[:, 0], tokens)

    The network is told the time at which its noise has that fraction of wrong tokens, or the
    nearest one it was trained with.
    """

    reader: WindowReader

    channel: Float[Tensor, "V V"] | None = None
    """Row v, column z: probability that z is written, given that the right token v was replaced.
    By default, wrong tokens are distributed like the noise of the schedule."""

    num_alternatives: int = 1
    """Number of other tokens per position."""

    def time(self, error_rate: float) -> float:
        """Return the time the network is told for this fraction of wrong tokens."""
        reader = self.reader
        schedule = reader.engine.schedule
        return float(time_at_error_rate(schedule, error_rate, reader.min_time, reader.max_time))

    async def __call__(
        self, jobs: Jobs, windows: Iterable[WindowTokens], error_rate: float
    ) -> list[WindowPosterior]:
        """Return the posterior of each window, in order."""
        time = self.time(error_rate)
        items = ((window, time) for window in windows)
        values = await self.reader.read(jobs, items, _ReadPosteriors(self, error_rate))
        return [WindowPosterior(*each) for each in values]


@final
@dataclass(frozen=True)
class _ReadPosteriors:
    """Reads the fields of `WindowPosterior` of a batch of windows."""

    judge: PosteriorPass
    error_rate: float

    def __call__(self, prediction: Prediction, judged: Tensor) -> tuple[Tensor, ...]:
        judge, z, t = self.judge, prediction.z, prediction.t
        schedule = judge.reader.engine.schedule
        likelihood = likelihood_of(schedule, t, z, self.error_rate, judge.channel)
        found, x_theta, *others = read_posterior(
            prediction, judged, likelihood, judge.num_alternatives
        )
        tokens, probabilities = (other.movedim(0, -1) for other in others)
        return found, x_theta, tokens, probabilities
