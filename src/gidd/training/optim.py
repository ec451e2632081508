"""AdamW and its learning rate schedule; imports torch only to build the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import AdamW


@final
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warmup and cosine decay; the defaults are the paper's (App. E)."""

    learning_rate: float = 5e-4
    """Peak learning rate, reached at the end of the warmup."""

    warmup: int = 10_000
    """Steps of linear warmup from 0."""

    final_lr_ratio: float = 0.1
    """Final learning rate as a fraction of the peak (cosine decay)."""

    beta1: float = 0.9
    """Adam beta1: decay of the first moment."""

    beta2: float = 0.99
    """Adam beta2: decay of the second moment."""

    eps: float = 1e-9
    """Adam epsilon, added to the denominator of the update."""

    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW), on all parameters; the paper's GIDD+ uses 0.02."""

    max_grad_norm: float = 1.0
    """Maximum gradient norm; larger gradients are clipped to it."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid setting."""
        for field in ("learning_rate", "warmup", "weight_decay"):
            if not getattr(self, field) >= 0:
                yield f"optim.{field} must be at least 0, got {getattr(self, field)}."
        if not 0 <= self.final_lr_ratio <= 1:
            yield f"optim.final_lr_ratio must be in [0, 1], got {self.final_lr_ratio}."
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                yield f"optim.{field} must be in [0, 1), got {getattr(self, field)}."
        for field in ("max_grad_norm", "eps"):
            if not getattr(self, field) > 0:
                yield f"optim.{field} must be positive, got {getattr(self, field)}."

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of the update from `step` to `step + 1`."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, num_steps - self.warmup)
        falling = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return self.learning_rate * (self.final_lr_ratio + (1 - self.final_lr_ratio) * falling)

    def build(self, parameters: Iterable[nn.Parameter]) -> AdamW:
        """Return the optimiser with its state allocated, so that a checkpoint can be loaded."""
        import torch

        optimizer = torch.optim.AdamW(
            [parameter for parameter in parameters if parameter.requires_grad],
            lr=self.learning_rate,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                    "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
                }
        return optimizer
