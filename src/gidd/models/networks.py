"""What training and files need of any network: its blocks, its parameters, their initial values."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.weights import COPY_BOTH_AGAIN, Shape, keep_tied, require_tensors


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded and compiled one by one; none if it declares none."""
    blocks: Iterable[nn.Module] = getattr(network, "blocks", ())
    return list(blocks)


def require_no_buffers(network: nn.Module) -> None:
    """Refuse persistent buffers, such as running means: a checkpoint has parameters only."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    if buffers := sorted(network.state_dict().keys() - parameters):
        raise ConfigError(
            f"the network must have no persistent buffers, got {shorten(buffers)}. Use "
            "register_buffer(..., persistent=False) for constants."
        )


def name_without_lora(name: str) -> str | None:
    """Return a parameter's name in the network without LoRA; None for a parameter of an adapter."""
    is_adapter = ".lora_A." in name or ".lora_B." in name
    return None if is_adapter else name.replace(".base_layer.", ".")


@final
class Initializer:
    """Fills parameters in order: the k-th depends on (seed, k), not on its sharding.

    Every rank draws the full tensor of one parameter at a time, and keeps its shard.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Without a seed, use torch's global generator, as torch's layers do."""
        self._seed = seed
        self._num_filled = 0

    def uniform(self, parameter: Tensor, bound: float) -> None:
        """Fill with samples of the uniform distribution over [-bound, bound)."""
        self._fill(parameter, lambda full, rng: full.uniform_(-bound, bound, generator=rng))

    def normal(self, parameter: Tensor, std: float) -> None:
        """Fill with samples of the normal distribution of mean 0."""
        self._fill(parameter, lambda full, rng: full.normal_(0, std, generator=rng))

    def _fill(
        self, parameter: Tensor, draw: Callable[[Tensor, torch.Generator | None], Tensor]
    ) -> None:
        index, generator = self._num_filled, None
        self._num_filled += 1
        if parameter.is_meta:
            return
        from torch.distributed.tensor import DTensor  # here, as it takes 0.65 s

        if self._seed is not None:
            # torch's CPU generator uses 32 bits of its seed: hash, so that all depend on both
            key = f"{self._seed}:{index}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
            generator = torch.Generator(parameter.device).manual_seed(seed)
        if not isinstance(parameter, DTensor):
            draw(parameter, generator)
            return
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        copy_full(parameter, draw(full, generator))


@torch.no_grad()
def copy_full(parameter: Tensor, full: Tensor) -> None:
    """Copy a complete tensor to a parameter, of which this rank may have a shard."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        full = full.to(parameter.device, parameter.dtype)
        full = distribute_tensor(full, mesh, placements, src_data_rank=None)
    parameter.copy_(full)


@torch.no_grad()
def initialize(network: nn.Module, seed: int, build: Callable[[], nn.Module]) -> None:
    """Give a network, perhaps sharded, parameters and buffers that depend on the seed alone.

    A network that cannot fill its parameters itself is built once more in host memory.
    """
    reset: Any = getattr(network, "reset_parameters", None)
    if reset is not None and inspect.signature(reset).parameters:
        reset(Initializer(seed))
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # not those of GPUs
        complete = build()
    values = dict(complete.named_parameters()) | dict(complete.named_buffers())
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if (key := name_without_lora(name)) is not None:  # `reset_lora` fills adapters
            copy_full(tensor, values[key])


def require_network(
    config: Any, shapes: Mapping[str, Shape], file: Path, name_in_file: Callable[[str], str] = str
) -> None:
    """Refuse a file whose tensors are not those of the network with this configuration.

    `shapes` are those in the file, `name_in_file` converts names of parameters to names in
    it. The configuration is not trusted: nothing is allocated, and no more layers are built than
    the file has tensors; a single one, if its class has `equal_blocks`, the name of their list.
    """
    num_layers: object = getattr(config, "num_layers", 0)
    if type(num_layers) is int and num_layers > len(shapes):
        required = f"must have the tensors of num_layers = {shorten(num_layers)} layers"
        raise CheckpointError(f"{file} {required}, got {len(shapes)} tensors. {COPY_BOTH_AGAIN}")
    blocks: str | None = getattr(config, "equal_blocks", None)
    with torch.device("meta"):
        network = (config if blocks is None else replace(config, num_layers=1)).build()
    expected: dict[str, Shape] = {}
    for name, parameter in network.named_parameters():
        first = f"{blocks}.0."
        for i in range(config.num_layers if name.startswith(first) else 1):
            of_block = name.replace(first, f"{blocks}.{i}.", 1)
            expected[name_in_file(of_block)] = tuple(parameter.shape)
    require_tensors(expected, shapes, file)


def network_from_tensors(
    config: Any, tensors: Mapping[str, Tensor], name_in_file: Callable[[str], str] = str
) -> nn.Module:
    """Build a network from the tensors of a file; call `require_network` first.

    Tensors are not copied, but all get the widest type, unless a network `has_mixed_types`.
    """
    with torch.device("meta"):
        network = cast(nn.Module, config.build())
    names = {id(value): name_in_file(name) for name, value in network.named_parameters()}
    tied = network.named_parameters(remove_duplicate=False)
    state = {name: tensors[names[id(value)]] for name, value in tied}
    with keep_tied(network):
        network.load_state_dict(state, assign=True)
    if not getattr(network, "has_mixed_types", False):
        network.to(reduce(torch.promote_types, (tensor.dtype for tensor in state.values())))
    network.requires_grad_(True)
    if lost := [name for name, buffer in network.named_buffers() if buffer.is_meta]:
        values = dict(cast(nn.Module, config.build()).named_buffers())  # constants of the config
        for name in lost:
            owner, _, attribute = name.rpartition(".")
            network.get_submodule(owner).register_buffer(attribute, values[name], persistent=False)
    return network
