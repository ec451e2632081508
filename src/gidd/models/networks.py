"""What training and files need of any network: its blocks, its parameters, their initial values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.dit import require_dit
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.init import Initializer, copy_full
from gidd.models.lora import name_without_lora
from gidd.models.weights import COPY_BOTH_AGAIN, Shape, assign_tensors, require_tensors


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded and compiled one by one; none if it declares none."""
    blocks: Iterable[nn.Module] = getattr(network, "blocks", ())
    return list(blocks)


def require_no_buffers(network: nn.Module) -> None:
    """Refuse persistent buffers, such as running means: a checkpoint has parameters only."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    if buffers := sorted(network.state_dict().keys() - parameters):
        raise ConfigError(
            f"the network must have no persistent buffers, got {shorten(buffers)}: checkpoints "
            "hold parameters only. Use register_buffer(..., persistent=False) for constants."
        )


@torch.no_grad()
def initialize(network: nn.Module, seed: int, build: Callable[[], nn.Module]) -> None:
    """Give a network its initial parameters and buffers; it may be sharded.

    They depend on the seed alone. A network that cannot fill its parameters itself is built once
    more in host memory.
    """
    reset: Any = getattr(network, "reset_parameters", None)
    if reset is not None and inspect.signature(reset).parameters:
        reset(Initializer(seed))
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        complete = build()
    values = dict(complete.named_parameters()) | dict(complete.named_buffers())
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if (key := name_without_lora(name)) is not None:  # `reset_lora` fills adapters
            copy_full(tensor, values[key])


def require_network(config: Any, found: Mapping[str, Shape], file: Path) -> None:
    """Refuse a file whose tensors are not those of the network with this configuration.

    The configuration is not trusted: of a network with `num_layers`, no more layers are built than
    the file has tensors.
    """
    if isinstance(config, DiTConfig):
        require_dit(config, found, file)
        return
    num_layers: object = getattr(config, "num_layers", 0)
    if type(num_layers) is int and num_layers > len(found):
        raise CheckpointError(
            f"{file} must have the tensors of num_layers = {shorten(num_layers)} layers, got "
            f"{len(found)} tensors. {COPY_BOTH_AGAIN}"
        )
    with torch.device("meta"):
        expected = config.build().named_parameters()
    require_tensors({name: tuple(tensor.shape) for name, tensor in expected}, found, file)


def network_from_tensors(config: Any, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Build a network from the tensors of a file; call `require_network` first."""
    with torch.device("meta"):
        network = cast(nn.Module, config.build())
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    tied = network.named_parameters(remove_duplicate=False)
    network = assign_tensors(network, {name: tensors[names[id(value)]] for name, value in tied})
    if any(buffer.is_meta for buffer in network.buffers()):
        _restore_buffers(network, config)
    return network


def _restore_buffers(network: nn.Module, config: Any) -> None:
    """Fill buffers that are constants of the configuration and not in the file."""
    values = dict(cast(nn.Module, config.build()).named_buffers())
    for name, buffer in list(network.named_buffers()):
        if buffer.is_meta:
            owner, _, attribute = name.rpartition(".")
            network.get_submodule(owner).register_buffer(attribute, values[name], persistent=False)
