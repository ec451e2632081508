"""Short trainings of any backbone on a Markov source."""

import torch
from torch import Tensor, nn

from gidd.data.batch import Batch
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.weighting import ClampWeighting
from gidd.models.denoiser import Denoiser
from gidd.sources import MarkovSource
from gidd.vocab import Vocab
from support.train_steps import run_step, step_of

MARKOV_VOCAB = Vocab(9, mask_id=8)
_LENGTH, _SAMPLES = 16, 32


def markov_losses(
    network: nn.Module, *, steps: int, lr: float = 5e-3, **settings: object
) -> Tensor:
    """Train all parameters that require gradients with AdamW and return the loss of each step.

    `settings` are those of `Corruption`.
    """
    source = MarkovSource.random(8, concentration=0.05)
    schedule = HybridSchedule(MARKOV_VOCAB, p_uniform=0.1)
    weighting = ClampWeighting(schedule)
    training_step = step_of(Denoiser(network, MARKOV_VOCAB), schedule, weighting, **settings)
    trained = [p for p in training_step.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    network.train()
    losses: list[Tensor] = []
    for step in range(steps):
        index = torch.arange(_SAMPLES) + step * _SAMPLES
        tokens = source.sample(0, index, _LENGTH)
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), index)
        loss = run_step(training_step, batch, step, _SAMPLES, 1 / tokens.numel()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
