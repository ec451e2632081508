"""The paper's self-correction (Algorithm 1 of App. C), for many sequences at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.config.allowed import Allowed, integer, require_allowed
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.sampling.correctors.gibbs import DISTANCE, top_spaced
from gidd.sampling.predict import Predict
from gidd.sampling.ranges import TEMPERATURE
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Float

_COUNT = integer(1, fix="The paper commits 1 token per call, with a patience of 32.")
_SCORE = Allowed(
    callable, "a function of a Proposal", "Use rank_by_probability (the paper) or rank_by_ratio."
)


class Proposal(NamedTuple):
    """Inputs of a score function: probabilities of old and new tokens, each [B, L]."""

    old: Float[Tensor, "B L"]
    """x_theta of the current token."""
    new: Float[Tensor, "B L"]
    """x_theta of its replacement."""
    scaled_log_odds: Float[Tensor, "B L"]
    """Increases with the replacement's probability at the corrector's temperature."""


Score = Callable[[Proposal], Tensor]
"""Score function; changes with the highest scores are made first."""


def rank_by_probability(proposal: Proposal) -> Tensor:
    """Rank by the probability of the new token at the temperature: the paper's score."""
    return proposal.scaled_log_odds


def rank_by_ratio(proposal: Proposal) -> Tensor:
    """Rank by new / old, the probability ratio of the new token to the old."""
    return proposal.new / proposal.old.clamp_min(TINY)


@final
@dataclass(frozen=True)
class SelfCorrectionStep:
    """Run one iteration of Algorithm 1, App. C (s = t): draw tokens, commit the best change.

    A sequence has converged when no token would change. It also stops after `patience` steps
    without a higher self-accuracy, the fraction of free tokens that are the most likely ones. The
    result is the state of highest self-accuracy, possibly the initial one; the state after the last
    change has not been scored and is never returned. It suits samples of the model; for a text that
    was given use `PosteriorCorrection`.
    """

    min_steps: ClassVar[int] = 2
    """Calls that a phase needs: each one scores the change made by the call before."""
    temperature: Annotated[float, TEMPERATURE] = 0.1
    """Softmax temperature of the tokens that are drawn."""
    patience: Annotated[int, _COUNT] = 32
    """Calls without a higher self-accuracy after which to stop."""
    num_tokens: Annotated[int, _COUNT] = 1
    """Changes to commit per call; the paper commits 1."""
    distance: Annotated[int, DISTANCE] = 1
    """Least distance in tokens between changes of one call."""
    score: Annotated[Score, _SCORE] = rank_by_probability
    """Ranks the changes: `rank_by_probability` or `rank_by_ratio`."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Score the current state and commit the best changes."""
        z, free = state.tokens, state.free
        rows = predict(state, t, free)
        token, probability = rows.draw_each(state.random(Stream.TOKEN), None, self.temperature)
        differs = free & (token != z)
        log_odds = rows.log_odds(token, differs, self.temperature)
        scores = self.score(Proposal(rows.current, probability, log_odds))
        is_top = free & (rows.current >= rows.top_probability)
        self_accuracy = (is_top.sum(-1) / free.sum(-1).clamp_min(1)).to(state.best_score)
        improved = self_accuracy > state.best_score
        best_age = torch.where(improved, 0, state.best_age + 1)
        committed = top_spaced(scores, differs, self.num_tokens, self.distance)
        return state._replace(
            tokens=torch.where(committed, token, z),
            best=torch.where(improved[:, None], z, state.best),
            best_score=torch.where(improved, self_accuracy, state.best_score),
            best_age=best_age,
            probability=probability * committed,
            is_converged=~differs.any(-1) | (best_age >= self.patience),
        )
