"""Optimizers by name. Tests cover all that `COMPONENTS` names.

An optimizer is a function (network, optim) that returns a `torch.optim.Optimizer`, or several that
share the parameters. The training loop sets the learning rate of every parameter group before each
step. torch is imported inside functions: help lists optimizers without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from gidd.common.config.components import Component
from gidd.errors import ConfigError
from gidd.training.optim import OptimConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import AdamW, Optimizer

COMPONENTS: dict[str, str] = {"adamw": "adamw", "muon": "muon"}
"""Function of each optimizer by its name."""


def adamw(network: nn.Module, optim: OptimConfig) -> AdamW:
    """Optimize all parameters with AdamW (fused)."""
    return _adamw(network.parameters(), optim)


def muon(
    network: nn.Module, optim: OptimConfig, *, momentum: float = 0.95, ns_steps: int = 5
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


def _muon_problems(momentum: float, ns_steps: int) -> Iterable[str]:
    if not 0 <= momentum < 1:
        yield f"momentum must be in [0, 1), got {momentum}."
    if not 1 <= ns_steps < 100:
        yield f"ns_steps must be in [1, 99], got {ns_steps}."


muon.problems = _muon_problems  # pyright: ignore[reportFunctionMemberAccess]


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

    built: Any = chosen.build(network=network, optim=optim)
    found = tuple(cast("Sequence[Any]", built)) if isinstance(built, list | tuple) else (built,)
    if not found or not all(isinstance(each, Optimizer) for each in found):
        kinds = ", ".join(type(each).__name__ for each in found) or "nothing"
        raise ConfigError(
            f"optimizer {chosen.name} must return a torch.optim.Optimizer or several, got {kinds}."
        )
    return found
