"""An objective: the loss of a noisy batch, here after one more forward pass."""

from dataclasses import replace

import torch

import gidd
from gidd.diffusion.randomness import Stream
from gidd.models import Denoiser
from gidd.training import NoisyBatch, NoisyLoss, nelbo_objective, predict


@gidd.register("objective", "guessed")
def guessed(denoiser: Denoiser, noisy: NoisyBatch, *, fraction: float = 0.1) -> NoisyLoss:
    """Minimise the NELBO, with some noisy tokens replaced by predictions of the network.

    Args:
        denoiser: The model.
        noisy: The batch, its times and its noise.
        fraction: Fraction of replaced tokens.
    """
    chosen = noisy.random(Stream.PLACE) < fraction * 2**62
    if noisy.fixed is not None:
        chosen &= ~noisy.fixed
    z = torch.where(chosen, predict(denoiser, noisy), noisy.z)
    return nelbo_objective(denoiser, replace(noisy, z=z))
