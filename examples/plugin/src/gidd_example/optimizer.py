"""An optimizer: any of torch, made from the network and the settings that all optimizers share."""

import torch
from torch import nn

import gidd
from gidd.training.optim import OptimConfig


@gidd.register("optimizer", "nadam")
def nadam(
    network: nn.Module, optim: OptimConfig, *, momentum_decay: float = 4e-3
) -> torch.optim.Optimizer:
    """Optimize all parameters with NAdam.

    Args:
        network: The network.
        optim: Learning rate and other settings.
        momentum_decay: Decay of the momentum over time.
    """
    return torch.optim.NAdam(
        network.parameters(),
        lr=optim.learning_rate,
        betas=(optim.beta1, optim.beta2),
        momentum_decay=momentum_decay,
    )
