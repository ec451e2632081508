"""Whether a continuation is the most likely one."""

from __future__ import annotations

import torch

from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers


@torch.no_grad()
def is_greedy(estimator: NelboEstimator, text: ScoredText) -> bool:
    """Whether x_theta at t = 1, where all scored tokens are noise, is highest at each of them.

    One forward pass: all tokens are predicted at once.
    """
    x = text.tokens.to(estimator.device)
    given = torch.zeros_like(x, dtype=torch.bool)
    if text.given is not None:
        given = text.given.to(estimator.device)
    index, position = torch.tensor([text.index]).to(x), torch.arange(len(x)).to(x)
    u = random_integers(estimator.seed, Stream.PRIOR, 0, index, position)
    z = torch.where(given, x, sample_prior(estimator.schedule, u))
    hidden = estimator.model.hidden(z, torch.ones(1, device=x.device))
    weight, bias = estimator.model.head()
    states = hidden[0, ~given].float()
    predicted = torch.addmm(bias.float(), states, weight.float().T).argmax(-1)
    return bool((predicted == x[~given]).all())
