"""Optimizers by name, and the settings that all share.

An optimizer is a function (network, optim) that returns a `torch.optim.Optimizer`, or several that
share the parameters. The loop sets the learning rate of every parameter group before each step.
torch is imported inside functions: help lists optimizers without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, final

from gidd.common.config.allowed import at_least, integer, within
from gidd.common.config.codec import ADDED_LATER
from gidd.common.config.components import Component
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import AdamW, Optimizer


_FRACTION = within(lambda x: 0 <= x <= 1, "in [0, 1]")
_BELOW_ONE = within(lambda x: 0 <= x < 1, "in [0, 1)")
_POSITIVE = within(lambda x: x > 0, "positive")


@final
@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Linear warmup and cosine decay, AdamW; the defaults are the paper's (App. E)."""

    learning_rate: Annotated[float, at_least(0)] = 5e-4
    """Peak learning rate, reached at the end of the warmup."""
    warmup: Annotated[int, integer(0)] = 10_000
    """Steps of linear warmup from 0."""
    lr_schedule: Literal["cosine", "constant", "wsd"] = field(
        default="cosine", metadata={ADDED_LATER: True}
    )
    """After the warmup: cosine decay over all steps, constant, or wsd (warmup-stable-decay, arXiv
    2404.06395): constant, then linear decay over the last steps."""
    decay_ratio: Annotated[float, _FRACTION] = field(default=0.2, metadata={ADDED_LATER: True})
    """Fraction of all steps in which wsd decays."""
    final_lr_ratio: Annotated[float, _FRACTION] = 0.1
    """Final learning rate as a fraction of the peak (cosine and wsd)."""
    beta1: Annotated[float, _BELOW_ONE] = 0.9
    """Adam beta1: decay of the first moment."""
    beta2: Annotated[float, _BELOW_ONE] = 0.99
    """Adam beta2: decay of the second moment."""
    eps: Annotated[float, _POSITIVE] = 1e-9
    """Adam epsilon, added to the denominator of the update."""
    weight_decay: Annotated[float, at_least(0)] = 0.0
    """Decoupled weight decay (AdamW), on all parameters; the paper's GIDD+ uses 0.02."""
    max_grad_norm: Annotated[float, _POSITIVE] = 1.0
    """Maximum gradient norm; larger gradients are clipped to it."""

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


COMPONENTS: dict[str, str] = {"adamw": "adamw", "muon": "muon"}
"""Function of each optimizer by its name."""


def adamw(network: nn.Module, optim: OptimConfig) -> AdamW:
    """Optimize all parameters with AdamW (fused)."""
    return _adamw(network.parameters(), optim)


def muon(
    network: nn.Module,
    optim: OptimConfig,
    *,
    momentum: Annotated[float, _BELOW_ONE] = 0.95,
    ns_steps: Annotated[int, integer(1, 99)] = 5,
) -> list[Optimizer]:
    """Optimize hidden matrices with Muon, and embeddings, head, norms and biases with AdamW.

    Updates have the RMS of AdamW's (arXiv 2502.16982), so that both have one learning rate.

    Args:
        network: The network.
        optim: The settings that all optimizers share.
        momentum: Decay of the momentum of Muon.
        ns_steps: Newton-Schulz iterations that orthogonalize an update.
    """
    import torch
    from torch import nn

    outer = [m for m in network.modules() if isinstance(m, nn.Embedding)]
    outer += [head] if isinstance(head := getattr(network, "head", None), nn.Module) else []
    ids = {id(parameter) for module in outer for parameter in module.parameters()}
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    hidden = [p for p in trained if p.ndim == 2 and id(p) not in ids]
    others = [p for p in trained if p.ndim != 2 or id(p) in ids]
    if not hidden:
        raise ConfigError("optimizer muon needs a network with hidden matrices. Use adamw.")
    matrices = torch.optim.Muon(
        hidden,
        lr=optim.learning_rate,
        weight_decay=optim.weight_decay,
        momentum=momentum,
        ns_steps=ns_steps,
        adjust_lr_fn="match_rms_adamw",
    )
    for parameter in hidden:
        zeros = torch.zeros_like(parameter, requires_grad=False)
        matrices.state[parameter] = {"momentum_buffer": zeros}
    return [matrices, _adamw(others, optim)] if others else [matrices]


def _adamw(parameters: Iterable[nn.Parameter], optim: OptimConfig) -> AdamW:
    """Return AdamW with its state allocated, as its first step would."""
    import torch

    trained = [parameter for parameter in parameters if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=optim.learning_rate,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        fused=True,
    )
    for parameter in trained:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def build_optimizers(
    chosen: Component, network: nn.Module, optim: OptimConfig
) -> tuple[Optimizer, ...]:
    """Build the optimizers of a network whose parameters are on their devices."""
    from torch.optim import Optimizer

    returned: Any = chosen.build(network=network, optim=optim)
    is_sequence = isinstance(returned, list | tuple)
    optimizers = tuple(cast("Sequence[Any]", returned)) if is_sequence else (returned,)
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "nothing"
        raise ConfigError(
            f"optimizer {chosen.name} must return a torch.optim.Optimizer or several, got {kinds}."
        )
    return optimizers
