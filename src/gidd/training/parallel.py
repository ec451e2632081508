"""Placement of parameters: replicated on every rank (DDP) or sharded over ranks (FSDP2).

torch is imported by the methods and functions that need it: configurations name these classes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast, final

from gidd.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    from gidd.training.world import World


@final
@dataclass(frozen=True, kw_only=True)
class DDP:
    """Model and optimiser state replicated on every rank: for models that fit one device."""

    def place(
        self, module: nn.Module, blocks: Sequence[nn.Module], world: World, precision: torch.dtype
    ) -> nn.Module:
        """Move a module to this rank's device; one of the meta device gets uninitialised memory."""
        del blocks, precision
        return _allocate(module, world.device)

    def connect(self, module: nn.Module, world: World) -> nn.Module:
        """Wrap an initialised module so that its backward pass sums gradients over ranks."""
        from torch.nn.parallel import DistributedDataParallel

        if world.size == 1:
            return module
        # no broadcast: all ranks initialised the same weights
        device_ids = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(
            module,
            device_ids=device_ids,
            init_sync=False,
            broadcast_buffers=False,  # buffers are constants
            gradient_as_bucket_view=True,
        )


@final
@dataclass(frozen=True, kw_only=True)
class FSDP:
    """Parameters, gradients and optimiser state sharded over ranks (FSDP2)."""

    shard_size: int | None = None
    """Consecutive ranks that share one copy of the model, e.g. those of a machine; default: all.
    Fewer ranks need less traffic between machines and more memory."""

    reshard_after_forward: bool = True
    """Free the parameters of a block after its forward pass; gather them again for the backward."""

    def place(
        self, module: nn.Module, blocks: Sequence[nn.Module], world: World, precision: torch.dtype
    ) -> nn.Module:
        """Shard a module; the part of this rank is moved or, of the meta device, uninitialised.

        `blocks` are modules inside it that are gathered, used and resharded one at a time. The head
        of its network is gathered while the last block computes, everything else at the start.
        """
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if world.device.type == "mps":
            raise ConfigError("--parallel fsdp does not work on mps. Use ddp, or --device cpu.")
        is_flat = self.shard_size in (None, world.size)
        mesh = world.mesh if is_flat else world.device_mesh_2d(self.shard_size or 0)
        # parameters are gathered in the precision of matrix products, gradients reduced in float32
        policy = MixedPrecisionPolicy(
            param_dtype=None if precision == torch.float32 else precision,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
        for block in blocks:
            shard(block, reshard_after_forward=self.reshard_after_forward)
        head = _untied_head(module)
        if blocks and head is not None:
            shard(head, reshard_after_forward=False)
            # queued after the all-gather of the last block, which is needed first
            last, head = cast("FSDPModule", blocks[-1]), cast("FSDPModule", head)
            last.set_modules_to_forward_prefetch([head])
        shard(module, reshard_after_forward=False)
        return _allocate(module, world.device)

    def connect(self, module: nn.Module, world: World) -> nn.Module:
        """Return the module: a sharded one reduces its own gradients."""
        del world
        return module


Parallel = DDP | FSDP


def gather(head: nn.Module) -> None:
    """Gather the parameters of the head if it is sharded: only its parameters are used.

    FSDP2 does this for modules that are called.
    """
    from torch.distributed.fsdp import FSDPModule

    if isinstance(head, FSDPModule):
        head.unshard()  # waits if the last block has started it


def _head_of(objective: nn.Module) -> nn.Module | None:
    return getattr(getattr(objective, "network", None), "head", None)


def _untied_head(objective: nn.Module) -> nn.Module | None:
    head = _head_of(objective)
    if head is None:
        return None
    own = {id(parameter) for parameter in head.parameters()}
    uses = [id(parameter) for _, parameter in objective.named_parameters(remove_duplicate=False)]
    is_untied = sum(use in own for use in uses) == len(own)
    return head if is_untied and id(head.weight) in own else None


def _allocate(module: nn.Module, device: torch.device) -> nn.Module:
    from gidd.models.weights import keep_tied

    if not any(parameter.is_meta for parameter in module.parameters()):
        return module.to(device)
    with keep_tied(module):
        return module.to_empty(device=device)


def sync_gradients_if_last(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Skip the gradient reduction over replicas for all micro-batches but the last.

    A sharded model still reduces over its shards after every micro-batch: skipping that would keep
    unsharded gradients in memory.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    if isinstance(module, FSDPModule):
        module.set_requires_all_reduce(last)
    return nullcontext()


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 shards a module."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def reshard(module: nn.Module) -> None:
    """Free parameters that were gathered for a forward pass without a backward pass."""
    for group in _groups_outside_blocks(module):
        group.reshard()


@contextmanager
def unsharded(module: nn.Module) -> Generator[None]:
    """Gather all parameters outside the blocks, to call submodules directly.

    All ranks enter and run the same code inside: blocks are gathered when they are called.
    """
    for group in _groups_outside_blocks(module):
        group.unshard()
    try:
        yield
    finally:
        reshard(module)


def _groups_outside_blocks(module: nn.Module) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [part for part in (module, _head_of(module)) if isinstance(part, FSDPModule)]
