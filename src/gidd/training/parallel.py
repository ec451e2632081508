"""Placement of parameters: replicated on every rank (DDP) or sharded over ranks (FSDP2)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gidd.errors import ConfigError
from gidd.models.weights import keep_tied
from gidd.training.config import DDP as DDP, FSDP, Parallel
from gidd.training.world import World


def distribute(
    parallel: Parallel,
    module: nn.Module,
    blocks: Sequence[nn.Module],
    world: World,
    precision: torch.dtype,
) -> nn.Module:
    """Move or shard a module. Meta parameters get uninitialised storage.

    `blocks` are modules inside it that FSDP gathers, uses and reshards one at a time. The head of
    its network is gathered while the last block computes, everything else at the start.
    """
    if isinstance(parallel, FSDP):
        _shard(parallel, module, blocks, world, precision)
    if not any(parameter.is_meta for parameter in module.parameters()):
        return module.to(world.device)
    with keep_tied(module):
        return module.to_empty(device=world.device)


def _shard(
    parallel: FSDP,
    module: nn.Module,
    blocks: Sequence[nn.Module],
    world: World,
    precision: torch.dtype,
) -> None:
    if world.device.type == "mps":
        raise ConfigError("--parallel fsdp does not work on mps. Use ddp, or --device cpu.")
    is_flat = parallel.shard_size in (None, world.size)
    mesh = world.mesh if is_flat else world.device_mesh_2d(parallel.shard_size or 0)
    # parameters are gathered in the precision of matrix products, gradients reduced in float32
    policy = MixedPrecisionPolicy(
        param_dtype=None if precision == torch.float32 else precision,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in blocks:
        shard(block, reshard_after_forward=parallel.reshard_after_forward)
    head = _untied_head(module)
    if blocks and head is not None:
        shard(head, reshard_after_forward=False)
        # queued after the all-gather of the last block, which is needed first
        last, head = cast(FSDPModule, blocks[-1]), cast(FSDPModule, head)
        last.set_modules_to_forward_prefetch([head])
    shard(module, reshard_after_forward=False)


def wrap_ddp(parallel: Parallel, module: nn.Module, world: World) -> nn.Module:
    """Return an initialised module whose backward pass sums gradients over ranks."""
    if isinstance(parallel, FSDP) or world.size == 1:
        return module
    # no broadcast: all ranks initialised the same weights, and buffers are constants
    replicated = DistributedDataParallel(
        module,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        init_sync=False,
        gradient_as_bucket_view=True,
    )
    replicated.broadcast_buffers = False  # torch 2.13 warns of the argument
    return replicated


def _head_of(model: nn.Module) -> nn.Module | None:
    return getattr(getattr(model, "network", None), "head", None)


def _untied_head(model: nn.Module) -> nn.Module | None:
    head = _head_of(model)
    if head is None:
        return None
    parameters = {id(parameter) for parameter in head.parameters()}
    uses = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    is_untied = sum(use in parameters for use in uses) == len(parameters)
    return head if is_untied and id(head.weight) in parameters else None


def sync_gradients_if_last(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Skip the gradient reduction over replicas for all micro-batches but the last.

    The reduction over shards is not skipped: unsharded gradients would stay in memory.
    """
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    if isinstance(module, FSDPModule):
        module.set_requires_all_reduce(last)
    return nullcontext()


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 shards a module."""
    return isinstance(module, FSDPModule)


@contextmanager
def unsharded(module: nn.Module) -> Generator[None]:
    """Gather all parameters outside the blocks, to call submodules directly.

    All ranks enter and run the same code inside: blocks are gathered when they are called.
    """
    groups = [part for part in (module, _head_of(module)) if isinstance(part, FSDPModule)]
    for group in groups:
        group.unshard()
    try:
        yield
    finally:
        for group in groups:
            group.reshard()
