"""Ancestral sampling by definition: the oracle of `ancestral` in tests."""

from __future__ import annotations

import torch

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.process import posterior
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.predict import Predict
from gidd.sampling.state import State, Times


def ancestral_reference(
    schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
) -> State:
    """Draw z_s ~ p_theta(z_s | z_t) (Eq. 16) from all [B, L, V] probabilities.

    Where z_t has probability 0 at time t, the posterior is undefined and the token is kept.
    """
    z = state.tokens
    x_theta = predict(state, t, torch.ones_like(state.protected)).dense
    p = posterior(schedule, s, t, z, x_theta)
    empty = p.sum(-1, keepdim=True) == 0
    kept = p.scatter(-1, z[..., None], 1.0)
    new = draw(p.where(~empty, kept), state.random(Stream.TOKEN)[..., None]).squeeze(-1)
    return state._replace(tokens=new, probability=at(x_theta, new))
