"""The sampler of DiffusionGemma: accept tokens up to an entropy bound, renoise all others."""

from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor

from gidd.common.config.allowed import number, require_allowed
from gidd.diffusion.categorical import at, draw
from gidd.diffusion.process import posterior, sample_prior
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling.predict import Predict
from gidd.sampling.state import State

_POSITIVE = number(lambda value: 0 < value <= 1e6, "in (0, 1e6]")


@final
@dataclass(frozen=True)
class Renoise:
    """Draw all tokens, accept those of least entropy, and replace all others by noise.

    The k tokens of least entropy are accepted for which the sum of the entropies without the
    largest is at most `entropy_bound`, a bound on their mutual information (EB-Sampler, arXiv
    2505.24857). No token is final: each step chooses again. The result is the most likely token of
    each position, of the last step, or of the first that repeats the result of the step before with
    a mean entropy below `stop_entropy`. Defaults are DiffusionGemma's. Tokens are drawn from
    p(x | z_t) instead of x_theta; times set only the temperature. It searches for a likely text and
    does not sample the data distribution.
    """

    entropy_bound: Annotated[float, _POSITIVE] = 0.1
    """Bound on the entropies, in nats; a larger one accepts more tokens per step."""
    min_temperature: Annotated[float, _POSITIVE] = 0.4
    """Temperature at t = 0."""
    max_temperature: Annotated[float, _POSITIVE] = 0.8
    """Temperature at t = 1; it decreases linearly with t."""
    stop_entropy: Annotated[float, _POSITIVE] = 0.005
    """Stop if the result repeats and the mean entropy is below this, in nats."""

    __post_init__ = require_allowed

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Accept and renoise."""
        z, free, u = state.tokens, state.free, state.random(Stream.TOKEN)

        def propose(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            now, current = t[i // z.shape[1]].to(rows), z.flatten()[i, None]
            p = posterior(schedule, 0 * now, now, current, rows[:, None]).squeeze(1)
            p = torch.where(p.sum(-1, keepdim=True) > 0, p, rows)  # where noise never produces z
            temperature = self.min_temperature * (1 - now) + self.max_temperature * now
            p = ((p / p.amax(-1, keepdim=True)).log() / temperature[:, None]).softmax(-1)
            token = draw(p, u.flatten()[i, None]).squeeze(-1)
            return token, at(p, token), torch.special.entr(p).sum(-1), p.argmax(-1)

        token, probability, entropy, top = predict(state, t, free).read(propose)
        ranked, order = entropy.masked_fill(~free, torch.inf).sort(dim=-1, stable=True)
        within = ranked.cumsum(-1) - ranked <= self.entropy_bound  # False at inf - inf
        accepted = torch.zeros_like(free).scatter(-1, order, within)
        noise = sample_prior(schedule, state.random(Stream.RENOISE))
        result = torch.where(free, top, z)
        repeats = (state.best_score >= 0) & (result == state.best).all(-1)
        is_certain = entropy.sum(-1) < self.stop_entropy * free.sum(-1)
        return state._replace(
            tokens=torch.where(accepted, token, noise),
            probability=probability * accepted,
            best=result,
            best_score=torch.ones_like(state.best_score),
            is_converged=repeats & is_certain,
        )
