"""LoRA: train a product of two narrow matrices per linear layer, and keep the network's weights.

torch and peft are imported by the functions that need them: configurations name `LoraConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast, final

from gidd.common.config.allowed import POSITIVE, Allowed, integer, number
from gidd.common.config.codec import ADDED_LATER
from gidd.common.optional import optional_package
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from gidd.models.networks import Initializer

_ALL = "all-linear"


def _are_names(targets: str) -> bool:
    return all(name.strip() for name in targets.split(","))


_TARGETS = Allowed(_are_names, f"{_ALL} or names of layers")
_ADAPTER = "default"
"""Name that peft gives to the matrices."""


@final
@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters of linear layers: in the blocks, or in all of a network without blocks."""

    rank: Annotated[int, integer(0)] = 0
    """Rank of the trained matrices; 0: no LoRA, all weights are trained."""
    alpha: Annotated[float, POSITIVE] = 16.0
    """Scale: the product of the matrices is multiplied by alpha / rank."""
    dropout: Annotated[float, number(lambda x: 0 <= x < 1, "in [0, 1)")] = 0.0
    """Dropout rate of the inputs of the trained matrices."""
    targets: Annotated[str, _TARGETS] = _ALL
    """Layers to adapt: all-linear for all linear layers of the blocks, or their names, separated
    by commas, for example q_proj,v_proj."""
    embeddings: bool = field(default=False, metadata={ADDED_LATER: True})
    """Train embeddings and head too: for tokens that the model has never seen, such as end-of-text
    in a model of texts without it."""


def add_lora(network: nn.Module, config: LoraConfig) -> None:
    """Add adapters to the linear layers of the blocks, in place, and freeze everything else.

    Modules that the pretrained network does not have (`added_modules` of the network) stay
    trainable, and with `config.embeddings` embeddings and head do. With rank 0 nothing changes.
    """
    if config.rank == 0:
        return
    from torch import nn

    from gidd.models.networks import name_without_lora

    peft = optional_package("peft", "hf")
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=_target_names(network, config.targets),
    )
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    peft.inject_adapter_in_model(adapters, network, _ADAPTER)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name_without_lora(name) is None)
    trained = list[nn.Module](getattr(network, "added_modules", ()))
    if config.embeddings:
        trained += [part for part in network.modules() if isinstance(part, nn.Embedding)]
        trained.append(cast(Any, network).head)
    for module in trained:
        module.requires_grad_(True)


def reset_lora(network: nn.Module, initial: Initializer) -> None:
    """Initialise adapters of loaded weights: one matrix uniform, one 0, so that they do nothing."""
    import torch

    with torch.no_grad():
        for _, layer in _adapted_layers(network):
            # Kaiming, as peft and torch's linear layers
            initial.uniform(layer.lora_A[_ADAPTER].weight, layer.in_features**-0.5)
            layer.lora_B[_ADAPTER].weight.zero_()


def merge_lora(network: nn.Module) -> None:
    """Add the product of the matrices to the weights and remove the adapters, before saving."""
    for name, layer in _adapted_layers(network):
        layer.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(parent), attribute, layer.get_base_layer())
    if hasattr(network, "peft_config"):
        del network.peft_config
    network.requires_grad_(True)


def _adapted_layers(network: nn.Module) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in network.named_modules() if hasattr(part, "lora_A")]


def _target_names(network: nn.Module, targets: str) -> list[str]:
    from torch import nn

    head: object = getattr(network, "head", None)
    blocks: Iterable[nn.Module] = getattr(network, "blocks", network.children())
    inside = {id(part) for block in blocks if block is not head for part in block.modules()}
    linear = [
        name
        for name, module in network.named_modules()
        if id(module) in inside and isinstance(module, nn.Linear)
    ]
    if not linear:
        kind = type(network).__name__
        raise ConfigError(f"lora.rank must be 0: there are no linear layers in blocks of {kind}.")
    if targets == _ALL:
        return linear
    wanted = [name.strip() for name in targets.split(",")]
    known = {name.rpartition(".")[2] for name in linear}
    if unknown := sorted(set(wanted) - known):
        raise ConfigError(
            f"lora.targets has {', '.join(unknown)}, but must be {_ALL} or linear layers of the "
            f"blocks: {', '.join(sorted(known))}."
        )
    return [name for name in linear if name.rpartition(".")[2] in wanted]
