"""Where the parameters live: whole on every rank (DDP), or in parts on many (FSDP2)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gidd.errors import ConfigError
from gidd.models.init import Initializer
from gidd.training.world import World


class ShardableNetwork(Protocol):
    """A network that training can spread over ranks: a `DiT`, an `AutoregressiveModel`."""

    @property
    def blocks(self) -> nn.ModuleList:
        """Parts that are gathered, used and let go one after the other."""
        ...

    def reset_parameters(self, initial: Initializer) -> None:
        """Draw all weights."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class DDP:
    """Every rank holds the whole model and optimiser (DDP): for models that fit one device."""

    def place(
        self, module: nn.Module, network: ShardableNetwork, world: World, precision: torch.dtype
    ) -> nn.Module:
        """Give a module on the meta device its memory on this rank, ready to be filled."""
        del network, precision
        return module.to_empty(device=world.device)

    def connect(self, module: nn.Module, world: World) -> nn.Module:
        """Let the backward pass of a filled module add up gradients over ranks."""
        if world.size == 1:
            return module
        # all ranks drew the same weights: there is nothing to broadcast
        device_ids = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(
            module, device_ids=device_ids, init_sync=False, gradient_as_bucket_view=True
        )


@final
@dataclass(frozen=True, kw_only=True)
class FSDP:
    """Parameters, gradients and optimiser are divided among ranks (FSDP2)."""

    shard_size: int | None = None
    """Neighbouring ranks that share one copy of the model, e.g. those of one machine; all by
    default. Fewer means less traffic between machines and more memory."""

    reshard_after_forward: bool = True
    """Let a block's parameters go after its forward pass and gather them again for the backward."""

    def place(
        self, module: nn.Module, network: ShardableNetwork, world: World, precision: torch.dtype
    ) -> nn.Module:
        """Divide a module on the meta device and give this rank the memory of its part."""
        if world.device.type == "mps":
            raise ConfigError(
                "a model cannot be divided on an Apple GPU. Give --parallel ddp, or --device cpu."
            )
        mesh = world.mesh if self.shard_size in (None, world.size) else world.grid(self.shard_size)
        # gathered in the precision of the matrix products, added up in float32
        policy = MixedPrecisionPolicy(
            param_dtype=None if precision == torch.float32 else precision,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for block in network.blocks:
            fully_shard(
                block,
                mesh=mesh,
                mp_policy=policy,
                reshard_after_forward=self.reshard_after_forward,
            )
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        return module.to_empty(device=world.device)

    def connect(self, module: nn.Module, world: World) -> nn.Module:
        """Nothing more to do: a sharded module adds up its own gradients."""
        del world
        return module


Parallel = DDP | FSDP


def sync_gradients_if_last(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Leave out the sum over ranks for all micro-batches but the last, where that is free.

    A replicated model keeps whole gradients anyway. A sharded one would have to begin to, so its
    gradients are divided after every micro-batch; copies of it are summed over after the last.
    """
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    if isinstance(module, FSDPModule):
        module.set_requires_all_reduce(last)
    return nullcontext()


def reshard(module: nn.Module) -> None:
    """Give back what was gathered for a forward pass that no backward pass follows."""
    if isinstance(module, FSDPModule):
        module.reshard()


@contextmanager
def unsharded(module: nn.Module) -> Generator[None]:
    """Have all parameters outside the blocks at hand, to use parts of a module by themselves.

    All ranks enter and do the same in here: blocks are gathered as they are called.
    """
    if isinstance(module, FSDPModule):
        module.unshard()
    try:
        yield
    finally:
        reshard(module)


def compile_blocks(network: ShardableNetwork) -> None:
    """Compile every block by itself: one short compilation serves all, and none may break."""
    for block in network.blocks:
        block.compile(fullgraph=True)
