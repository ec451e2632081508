"""The one estimator of likelihoods: the NELBO of texts with its ends and a standard error.

    -log p(x) <= integral over [eps, 1 - eps] of Eq. 14  +  reconstruction at eps  +  prior

Trainer, `pipe.score`, `gidd eval` and the task harness all use it. A repeat is one unbiased
estimate: a few times t for each text (`time_grids`), one noisy text per time. Standard errors come
from the spread between repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.diffusion.nelbo import NelboEstimator
from gidd.diffusion.text_rows import TextTokens
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float

NUM_REPEATS = 4
"""Default number of repeats."""


@final
@dataclass(frozen=True)
class NelboEstimate:
    """Estimates of the NELBO of texts in nats, in float64 on the CPU."""

    draws: Float[Tensor, "R B 2"]
    """Integral and reconstruction of each text in each repeat."""

    prior: Float[Tensor, " B"]
    """Cost of the first step from the prior, computed once: less than eps of the NELBO."""

    calls: int
    """Forward passes of single texts."""

    @property
    def nelbo(self) -> Float[Tensor, " B"]:
        """Mean over the repeats of the sum of all three terms."""
        return self.draws.sum(-1).mean(0) + self.prior

    @property
    def standard_error(self) -> Float[Tensor, " B"]:
        """Standard error of each NELBO; it has repeats - 1 degrees of freedom."""
        return self.draws.sum(-1).std(0) / math.sqrt(len(self.draws))

    @property
    def total(self) -> float:
        """NELBO of all texts together."""
        return float(self.nelbo.sum())

    @property
    def total_error(self) -> float:
        """Standard error of `total`, for texts with different indices."""
        return float(self.standard_error.square().sum().sqrt())


def estimate_nelbo(
    estimator: NelboEstimator,
    texts: Sequence[TextTokens],
    *,
    repeats: int = NUM_REPEATS,
    max_se: float | None = None,
    max_calls: int | None = None,
    on_calls: Callable[[int, int], None] | None = None,
) -> NelboEstimate:
    """Estimate the NELBO of each text; under several ranks each gets the same result.

    Args:
        estimator: The model, its noise and the time grid.
        texts: The texts; of any lengths that the model accepts.
        repeats: Number of repeats; with `max_se`, the smallest number.
        max_se: Continue until the standard error of the total, per scored token, is at most this,
            or is not a number because predictions are not finite.
        max_calls: With `max_se`: start no repeat that exceeds this number of forward passes.
        on_calls: Called with the forward passes done and expected, as they are done.
    """
    if repeats < 2:
        raise ConfigError(
            f"repeats must be at least 2, got {repeats}. The standard error is computed from them."
        )
    num_scored = sum(text.num_scored for text in texts)
    per_repeat, calls, draws = estimator.calls_per_repeat(len(texts)), 0, list[Tensor]()

    def count(number: int) -> None:
        nonlocal calls
        calls += number
        if on_calls is not None:
            on_calls(calls, first + max(repeats, len(draws) + 1) * per_repeat)

    first = len(texts) if estimator.has_ends else 0
    prior = estimator.prior(texts, count)
    while True:
        draws.append(estimator.draw(texts, len(draws), count))
        if len(draws) >= repeats:
            found = NelboEstimate(torch.stack(draws), prior, calls)
            # the error of a prediction that is NaN never falls
            is_precise = max_se is None or not found.total_error > max_se * num_scored
            if is_precise or (max_calls is not None and calls + per_repeat > max_calls):
                return found
