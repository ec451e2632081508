"""Settings that all optimizers share: learning rate and its schedule, clipping, AdamW's own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, final

from gidd.common.config.codec import ADDED_LATER


@final
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Linear warmup and cosine decay, AdamW; the defaults are the paper's (App. E)."""

    learning_rate: float = 5e-4
    """Peak learning rate, reached at the end of the warmup."""

    warmup: int = 10_000
    """Steps of linear warmup from 0."""

    lr_schedule: Literal["cosine", "constant", "wsd"] = field(
        default="cosine", metadata={ADDED_LATER: True}
    )
    """After the warmup: cosine decay over all steps, constant, or wsd (warmup-stable-decay, arXiv
    2404.06395): constant, then linear decay over the last steps."""

    decay_ratio: float = field(default=0.2, metadata={ADDED_LATER: True})
    """Fraction of all steps in which wsd decays."""

    final_lr_ratio: float = 0.1
    """Final learning rate as a fraction of the peak (cosine and wsd)."""

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
        for name in ("learning_rate", "warmup", "weight_decay"):
            if not getattr(self, name) >= 0:
                yield f"optim.{name} must be at least 0, got {getattr(self, name)}."
        for name in ("final_lr_ratio", "decay_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"optim.{name} must be in [0, 1], got {getattr(self, name)}."
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                yield f"optim.{name} must be in [0, 1), got {getattr(self, name)}."
        for name in ("max_grad_norm", "eps"):
            if not getattr(self, name) > 0:
                yield f"optim.{name} must be positive, got {getattr(self, name)}."

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of the update from `step` to `step + 1`."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.lr_schedule == "cosine":
            done = (step - self.warmup) / max(1, num_steps - self.warmup)
            falling = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        else:
            decayed = self.decay_ratio * num_steps if self.lr_schedule == "wsd" else 0.0
            falling = min((num_steps - step) / decayed, 1.0) if decayed else 1.0
        return self.learning_rate * (self.final_lr_ratio + (1 - self.final_lr_ratio) * falling)
