"""An objective: the loss of a noisy batch, here after one more forward pass."""

from dataclasses import replace

import torch

import gidd
from gidd.diffusion.randomness import Stream
from gidd.training.objective import DiffusionObjective, NoisyBatch, NoisyLoss


@gidd.register("objective", "guessed")
def guessed(model: DiffusionObjective, noisy: NoisyBatch, *, fraction: float = 0.1) -> NoisyLoss:
    """Minimise the NELBO, with some noisy tokens replaced by predictions of the network.

    Args:
        model: The network with its noise.
        noisy: The batch.
        fraction: Fraction of replaced tokens.
    """
    chosen = model.random(noisy, Stream.PLACE) < fraction * 2**62
    if noisy.fixed is not None:
        chosen &= ~noisy.fixed
    return model.nelbo(replace(noisy, z=torch.where(chosen, model.predict(noisy), noisy.z)))
