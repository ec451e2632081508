"""The exact posterior of every token of a text, in one forward pass.

A text with a fraction r of random tokens is a sample of Z_t, for the t whose noise is r
(`gidd.diffusion.error_rate`). x_theta is the posterior given all other tokens, so at that t

    p(x_i = v | Z) is proportional to x_theta(v | Z, t) q_t(z_i | v)

is the ordinary posterior. The most likely token minimises the expected number of wrong tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.categorical import at
from gidd.diffusion.error_rate import error_rate_at, visible_noise
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.ranges import ERROR_RATE, MIN_CONFIDENCE
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def token_posterior(
    x_theta: Float[Tensor, "K V"],
    z: Int[Tensor, " K"],
    keep: Float[Tensor, " K"],
    noise: Float[Tensor, "K V"] | Float[Tensor, "K 1"],
) -> Float[Tensor, "K V"]:
    """Return p(x = v | z), proportional to x_theta(v) (keep 1[v = z] + noise(v)).

    `noise` is the probability to find z in place of v: a single number where it does not depend on
    v. A token that cannot have been found, given x_theta and the noise, is kept.
    """
    current = z[:, None]
    x_theta = x_theta.to(keep)
    kept = torch.zeros_like(x_theta).scatter(-1, current, keep[:, None])
    weight = x_theta * (kept + noise)
    total = weight.sum(-1, keepdim=True)
    certain = torch.zeros_like(weight).scatter(-1, current, 1)
    return torch.where(total > 0, weight / total.where(total > 0, 1), certain)


class Likelihood(NamedTuple):
    """P(z_i | v) = keep 1[v = z_i] + noise at every position, v the right token."""

    keep: Float[Tensor, "B L"]
    noise: Float[Tensor, "B L"]
    """Probability to find z_i in place of another token v; with a channel, its factor."""
    channel: Float[Tensor, "V V"] | None = None
    """Row v, column z: probability of z given that v was replaced. Uniform if None."""

    def at(self, z: Int[Tensor, "B L"], i: Int[Tensor, " K"]) -> tuple[Tensor, Tensor]:
        """Return keep [K] and noise, [K, 1] or with a channel [K, V], at flat positions `i`."""
        keep, noise = self.keep.flatten()[i], self.noise.flatten()[i, None]
        if self.channel is None:
            return keep, noise
        column = self.channel.T[z.flatten()[i]]
        # a mask has the same likelihood given any token
        return keep, noise * torch.where(keep[:, None] > 0, column, 1)


def likelihood_of(
    schedule: MixingSchedule,
    t: Times,
    z: Int[Tensor, "B L"],
    error_rate: Float[Tensor, " B"] | float | None = None,
    channel: Float[Tensor, "V V"] | Float[Tensor, " V"] | None = None,
) -> Likelihood:
    """Return the likelihood of the tokens of a text under the noise of time t.

    `error_rate` is the fraction of wrong tokens, by default the error rate at time t. A
    mask is as likely given any token. `channel` is the distribution of what is written in place of
    each token, or in place of any.
    """
    if channel is None:
        keep, table = visible_noise(schedule, t, error_rate)
        noise = table.gather(-1, z)
        keep = keep[:, None].expand_as(noise)
    else:
        rate = error_rate_at(schedule, t) if error_rate is None else error_rate
        noise = torch.as_tensor(rate).to(t).expand_as(t)[:, None].expand(z.shape)
        keep, channel = 1 - noise, channel.to(t)
        if channel.dim() == 1:
            noise, channel = noise * channel[z], None
    if schedule.vocab.mask_id is not None:
        is_mask = z == schedule.vocab.mask_id
        keep, noise = torch.where(is_mask, 0, keep), torch.where(is_mask, 1, noise)
    return Likelihood(keep, noise, channel)


def read_posterior(
    rows: Rows, likelihood: Likelihood, num_alternatives: int = 1
) -> tuple[Tensor, ...]:
    """Compute the posterior of the tokens at the positions of the rows; 0 elsewhere.

    Returns the posterior probability of the current token and its x_theta, [B, L] each, then the
    most likely other tokens, the best one first, and their posterior probabilities, [B, L, A] each.
    """
    z = rows.tokens

    def posterior_of(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        if len(i) == 1:  # the sum of a single row is split among threads, which changes its bits
            return tuple(value[:1] for value in posterior_of(rows.repeat(2, 1), i.repeat(2)))
        current = z.flatten()[i]
        p = token_posterior(rows, current, *likelihood.at(z, i))
        others = p.scatter(-1, current[:, None], -1)
        probabilities, tokens = others.topk(num_alternatives, -1)
        return at(p, current), at(rows, current).to(p.dtype), tokens, probabilities.clamp_min(0)

    return rows.read(posterior_of)


def is_replaced(
    current: Float[Tensor, ...], other: Float[Tensor, ...], min_confidence: float | None = None
) -> Bool[Tensor, ...]:
    """Whether to replace a token: compares its posterior with the best other token's.

    It is replaced if the other one is more likely. That minimises the expected number of wrong
    tokens; with `min_confidence`, the other one must also be right with that probability.
    """
    return (other > current) & (other >= (min_confidence or 0.0))


@final
@dataclass(frozen=True)
class PosteriorCorrection:
    """Replace every token that is less probable, in the posterior, than another token (s = t).

    One call suffices: `corrector_plan(PosteriorCorrection(), 1, t)`, t being `time_at_error_rate`
    of the expected fraction of wrong tokens. The edit log has posterior probabilities. For a
    likelihood of your own see `PosteriorPass`.
    """

    log_name: ClassVar[str] = "posterior_correction"
    """Name in edit logs and manifests; the registered name is `posterior`."""
    error_rate: Annotated[float, ERROR_RATE] | None = None
    """Expected fraction of wrong tokens; by default the error rate at t."""
    min_confidence: Annotated[float, MIN_CONFIDENCE] | None = None
    """Least posterior probability of a replacement; by default, tokens are replaced so that the
    expected number of wrong ones is smallest."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Replace the tokens that are more likely wrong than right."""
        likelihood = likelihood_of(schedule, t, state.tokens, self.error_rate)
        rows = predict(state, t, state.free)
        current, _, tokens, probabilities = read_posterior(rows, likelihood)
        other, probability = tokens[..., 0], probabilities[..., 0]
        changed = state.free & is_replaced(current, probability, self.min_confidence)
        return state._replace(
            tokens=torch.where(changed, other, state.tokens),
            probability=probability * changed,
            is_converged=~changed.any(-1),
        )
