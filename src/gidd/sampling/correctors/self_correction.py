"""The paper's self-correction: a fixed-point iteration that commits what the network would change.

Algorithm 1 of App. C, for many sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.categorical import draw
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Best, Canvas, Change
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import require_temperature, temper
from gidd.sampling.spaced import require_distance, top_spaced

if TYPE_CHECKING:
    from jaxtyping import Float


class Proposal(NamedTuple):
    """The probabilities a score can be made of, each [K]."""

    old: Float[Tensor, " K"]
    """x_theta of the token that stands there."""

    new: Float[Tensor, " K"]
    """x_theta of the token that would replace it."""

    tempered: Float[Tensor, " K"]
    """The same at the corrector's temperature, from which it was drawn."""


Score = Callable[[Proposal], Tensor]
"""What decides which changes are made first."""


def likelihood(proposal: Proposal) -> Tensor:
    """The paper's score: how likely the new token is, at the corrector's temperature."""
    return proposal.tempered


def gain(proposal: Proposal) -> Tensor:
    """How much likelier the new token is than the old: the order of log new - log old."""
    return proposal.new / proposal.old.clamp_min(TINY)


def self_correction(
    schedule: MixingSchedule,
    s: Float[Tensor, " B"],
    t: Float[Tensor, " B"],
    canvas: Canvas,
    prediction: Prediction,
    *,
    temperature: float = 0.1,
    patience: int = 32,
    num_tokens: int = 1,
    distance: int = 1,
    score: Score = likelihood,
    errors: float | None = None,
) -> Change:
    """One pass of Algorithm 1's loop (s = t): draw a token everywhere, commit the best change.

    A sequence has converged when there is no change to make. It also stops after `patience` calls
    without a better self-accuracy, the share of free tokens that the network finds most likely. It
    is then left in the best state that was seen, which may be the one it came with: the state after
    the last change has not been judged, and is never returned.

    `num_tokens` changes are committed in one call, any two at least `distance` apart; 1 is the
    paper's. Each state's self-accuracy comes from its own prediction.

    Algorithm 1 replaces whatever the network would put otherwise, right or wrong. With `errors`,
    the share of tokens thought to be wrong, it replaces what is likelier wrong than right.
    """
    require_temperature("self-correction's temperature", temperature)
    require_distance(distance)
    _require_positive(num_tokens=num_tokens, patience=patience)
    least_gain = 0.0 if errors is None else _gain_of_an_error(errors, schedule.vocab.size)
    z, free = canvas.tokens, canvas.free
    u = canvas.random(Stream.TOKEN).flatten()

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        tempered = temper(rows, temperature)
        token = draw(tempered, u[i, None])
        old = rows.gather(-1, z.flatten()[i, None])
        values = (old, rows.gather(-1, token), tempered.gather(-1, token))
        proposal = Proposal(*(value.squeeze(-1) for value in values))
        is_top = proposal.old >= rows.amax(-1)
        allowed = proposal.new >= least_gain * proposal.old
        return token.squeeze(-1), proposal.new, score(proposal), is_top, allowed

    token, probability, scores, is_top, allowed = prediction.read(free, look)
    self_accuracy = (is_top.sum(-1) / free.sum(-1).clamp_min(1)).to(canvas.best.score)
    best = _better(canvas.best, z, self_accuracy)
    differs = free & allowed & (token != z)
    finished = ~differs.any(-1) | (best.age >= patience)
    committed = top_spaced(scores, differs, num_tokens, distance)
    return Change(torch.where(committed, token, z), probability * committed, best, finished)


def _better(best: Best, tokens: Tensor, score: Tensor) -> Best:
    """The best state so far, this one included."""
    improved = score > best.score
    return Best(
        torch.where(improved[:, None], tokens, best.tokens),
        torch.where(improved, score, best.score),
        torch.where(improved, 0, best.age + 1),
    )


def _gain_of_an_error(errors: float, num_tokens: int) -> float:
    """How much likelier a token must be than the one that it replaces (Bayes' rule).

    If a share `errors` of tokens was replaced by any of `num_tokens` at random, then, given the
    rest of the text, z stands there because it is right with weight (1 - errors) x_theta(z), and
    because v is right and was replaced with weight errors x_theta(v) / num_tokens.
    """
    if not 0 < errors < 1:
        raise ConfigError(
            f"self-correction's errors must be between 0 and 1, got {errors}. It is the share of "
            "tokens that are thought to be wrong, e.g. 0.05."
        )
    return (1 - errors) * num_tokens / errors


def _require_positive(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise ConfigError(
                f"self-correction's {name} must be at least 1, got {value}. The paper commits one "
                "token a call and has a patience of 32."
            )
