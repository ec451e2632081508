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
from gidd.sampling.canvas import BestState, Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import require_temperature, temper
from gidd.sampling.spaced import require_distance, top_spaced

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Proposal(NamedTuple):
    """The probabilities a score can be made of, each [K]."""

    old: Float[Tensor, " K"]
    """x_theta of the token that stands there."""

    new: Float[Tensor, " K"]
    """x_theta of the token that would replace it."""

    scaled_log_odds: Float[Tensor, " K"]
    """Rises with the new token's probability at the corrector's temperature."""


Score = Callable[[Proposal], Tensor]
"""What decides which changes are made first."""


def likelihood(proposal: Proposal) -> Tensor:
    """The paper's score: the order of how likely the new token is, at the temperature."""
    return proposal.scaled_log_odds


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
    error_rate: float | None = None,
) -> StepOutput:
    """One pass of Algorithm 1's loop (s = t): draw a token everywhere, commit the best change.

    A sequence has converged when there is no change to make. It also stops after `patience` calls
    without a better self-accuracy, the share of free tokens that the network finds most likely. It
    is then left in the best state that was seen, which may be the one it came with: the state after
    the last change has not been judged, and is never returned.

    `num_tokens` changes are committed in one call, any two at least `distance` apart; 1 is the
    paper's. Each state's self-accuracy comes from its own prediction.

    Algorithm 1 replaces whatever the network would put otherwise, right or wrong. With `error_rate`,
    the share of tokens thought to be wrong, it replaces what is likelier wrong than right.
    """
    require_temperature("self-correction's temperature", temperature)
    require_distance(distance)
    _require_positive(num_tokens=num_tokens, patience=patience)
    least_gain = 0.0 if error_rate is None else _gain_of_an_error(error_rate, schedule.vocab.size)
    z, free = canvas.tokens, canvas.free
    u = canvas.random(Stream.TOKEN).flatten()

    def look(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token = draw(temper(rows, temperature), u[i, None])
        here = z.flatten()[i, None]
        old, new = rows.gather(-1, here).squeeze(-1), rows.gather(-1, token).squeeze(-1)
        changed = (token != here).squeeze(-1)
        leads = rows.new_zeros(len(rows)).masked_scatter(
            changed, scaled_log_odds(rows[changed], token[changed], temperature)
        )
        proposal = Proposal(old, new, leads)
        is_top = proposal.old >= rows.amax(-1)
        allowed = proposal.new >= least_gain * proposal.old
        return token.squeeze(-1), proposal.new, score(proposal), is_top, allowed

    token, probability, scores, is_top, allowed = prediction.read(free, look)
    self_accuracy = (is_top.sum(-1) / free.sum(-1).clamp_min(1)).to(canvas.best.score)
    best = _better(canvas.best, z, self_accuracy)
    differs = free & allowed & (token != z)
    finished = ~differs.any(-1) | (best.age >= patience)
    committed = top_spaced(scores, differs, num_tokens, distance)
    return StepOutput(torch.where(committed, token, z), probability * committed, best, finished)


def scaled_log_odds(
    p: Float[Tensor, "K V"], token: Int[Tensor, "K 1"], temperature: float
) -> Float[Tensor, " K"]:
    """What rises with q, the probability of `token` at that temperature: an order of tokens.

    Not q itself: at a temperature of 0.1 float32 rounds q to 1 as soon as the token is six times as
    likely as the next. It is temperature * log(q / (1 - q)); at 0 that is the limit, the token's
    lead over the likeliest other one, and at 1 it is log q, which has the same order.
    """
    others = p.clamp_min(TINY).scatter(-1, token, 0)
    second, place = others.max(-1, keepdim=True)
    share = temper(others, temperature).gather(-1, place)  # of the second among the others
    log_rest = second.log() - temperature * share.log()
    return (p.gather(-1, token).log() - log_rest).squeeze(-1)


def _better(best: BestState, tokens: Tensor, score: Tensor) -> BestState:
    """The best state so far, this one included."""
    improved = score > best.score
    return BestState(
        torch.where(improved[:, None], tokens, best.tokens),
        torch.where(improved, score, best.score),
        torch.where(improved, 0, best.age + 1),
    )


def _gain_of_an_error(error_rate: float, num_tokens: int) -> float:
    """How much likelier a token must be than the one that it replaces (Bayes' rule).

    If a share `error_rate` of tokens was replaced by any of `num_tokens` at random, then, given the
    rest of the text, z stands there because it is right with weight (1 - errors) x_theta(z), and
    because v is right and was replaced with weight errors x_theta(v) / num_tokens.
    """
    if not 0 < error_rate < 1:
        raise ConfigError(
            f"error_rate must be between 0 and 1, got {error_rate}. It is the share of "
            "tokens that are thought to be wrong, e.g. 0.05."
        )
    return (1 - error_rate) * num_tokens / error_rate


def _require_positive(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise ConfigError(
                f"self-correction's {name} must be at least 1, got {value}. The paper commits one "
                "token a call and has a patience of 32."
            )
