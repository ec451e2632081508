"""The optimiser and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn


@final
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The settings of App. E, for Adam with decoupled weight decay on all parameters (AdamW)."""

    learning_rate: float = 5e-4
    """The highest, reached at the end of the warm-up."""

    warmup: int = 10_000
    """Steps over which the learning rate rises linearly from 0."""

    final_lr_ratio: float = 0.1
    """What is left of the learning rate at the last step; it falls there as a cosine."""

    beta1: float = 0.9
    """Memory of the mean of gradients."""

    beta2: float = 0.99
    """Memory of the mean of squared gradients."""

    eps: float = 1e-9
    """Added to the root of the squared mean."""

    weight_decay: float = 0.0
    """Share of a weight that is lost in a step, per unit of learning rate; 0.02 in GIDD+."""

    max_grad_norm: float = 1.0
    """Longer gradients are shortened to this."""

    def problems(self) -> Iterable[str]:
        """What is wrong with these settings."""
        for field, lowest, highest in (
            ("learning_rate", 0, math.inf),
            ("warmup", 0, math.inf),
            ("final_lr_ratio", 0, 1),
            ("weight_decay", 0, math.inf),
        ):
            value = getattr(self, field)
            if not lowest <= value <= highest:
                yield f"optim.{field} must be in [{lowest}, {highest}], got {value}."
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                yield f"optim.{field} must be in [0, 1), got {getattr(self, field)}."
        if not self.max_grad_norm > 0:
            yield (
                f"optim.max_grad_norm must be positive, got {self.max_grad_norm}: nothing would be "
                "learnt. The paper uses 1; inf shortens no gradient."
            )
        if not self.eps > 0:
            yield f"optim.eps must be positive, got {self.eps}. The paper uses 1e-9."

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Of the step from `step` to `step + 1`: up in a line, then down in half a cosine."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, num_steps - self.warmup)
        falling = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return self.learning_rate * (self.final_lr_ratio + (1 - self.final_lr_ratio) * falling)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
        """The optimiser, with its state in place, so that a checkpoint has where to go."""
        optimizer = torch.optim.AdamW(
            parameters,
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
