"""Trace one training step of the real model on one of N ranks, without its memory or other ranks.

The objective is built on the meta device, sharded by the run's own `Parallel` over a fake process
group of N ranks, and run on fake tensors, which have shapes but no data. Every allocation, every
collective and, for GPUs, every kernel launch is counted on the way. The fake process group is
global to a process: `trace_in_child` starts another one for it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from gidd.common.devices import acting_as, has_bf16
from gidd.data.batch import Batch
from gidd.models.networks import blocks_of
from gidd.planning.launches import LaunchCounter
from gidd.planning.memory import Collective, MemoryTracker
from gidd.training.build import build_objective, with_precision
from gidd.training.config import RunConfig
from gidd.training.loop import Gradients, update
from gidd.training.objective import Objective
from gidd.training.parallel import DDP
from gidd.training.state import EMA, TrainState
from gidd.training.world import World
from gidd.vocab import Vocab

_DDP_BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces in one call."""

Backend = Literal["cuda", "cpu"]


class RankBatch(NamedTuple):
    """Number of samples per step and per micro-batch on the rank with the most."""

    samples: int
    micro: int


def rank_batch(run: RunConfig, ranks: int) -> RankBatch:
    """Return the batch sizes of the rank with the most samples."""
    samples = -(-run.train.global_batch // ranks)
    return RankBatch(samples, -(-samples // run.train.accumulate))


@final
@dataclass(frozen=True, kw_only=True)
class StepLaunches:
    """Kernel launches of one rank in one training step on a GPU."""

    compiled: bool
    """Whether the blocks are compiled; the number of their kernels is then an estimate."""

    launches: dict[str, int]
    """Launches of forward and backward passes over all micro-batches, and of the update."""

    waits: int
    """Host-device synchronizations; copies from host memory are not counted."""

    misaligned_products: int
    """Matrix products with rows of no multiple of 16 bytes, which tensor cores compute slower."""


@final
@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """Memory, collectives and kernel launches of one rank in one training step."""

    num_parameters: int
    """Parameters of the complete model."""

    num_tensors: int
    """Parameter tensors of the model."""

    phases: dict[str, dict[str, int]]
    """Bytes by kind at the peak of forward, backward and update."""

    collectives: tuple[Collective, ...]
    """Collectives of all micro-batches."""

    launches: StepLaunches | None
    """None on CPUs."""


def trace_in_child(run: RunConfig, vocab: Vocab, ranks: int, kind: Backend) -> StepTrace:
    """Call `trace` in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        return child.submit(trace, run, vocab, ranks, kind).result()


def trace(run: RunConfig, vocab: Vocab, ranks: int, kind: Backend) -> StepTrace:
    """Trace one step of rank 0. The fake process group stays initialised afterwards."""
    run = with_precision(run, kind == "cuda" or has_bf16(torch.device("cpu")))
    (world, objective), counters = _sharded_objective(run, vocab, ranks), _Counters()
    if kind == "cuda" and run.train.autocast:
        follow_cuda_autocast(objective)
    if kind == "cuda" and run.train.compile is not False:  # None: on by default
        counters.fuse(blocks_of(objective.network))
    shape = rank_batch(run, ranks).micro, run.data.length
    tracker, accumulate = MemoryTracker(shape[0] * shape[1]), run.train.accumulate
    is_ddp = isinstance(run.parallel, DDP) and ranks > 1
    with (
        nullcontext() if kind == "cpu" else acting_as(kind),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        state = _state(run, objective, tracker)
        if is_ddp and accumulate > 1:
            # gradients of earlier micro-batches are kept outside the buckets that DDP reduces
            buffers = [torch.empty_like(parameter) for parameter in objective.parameters()]
            tracker.add("gradients", buffers)
        if is_ddp or accumulate > 1:
            # the pass that counts starts with gradients: those of an earlier micro-batch, or the
            # buckets of DDP, which are never freed
            _micro_batch(run, objective, shape, tracker, _Counters())
            tracker.collectives.clear()
        sums = _micro_batch(run, objective, shape, tracker, counters)
        phases, collectives = tracker.phases(), tuple(tracker.collectives.values())
        if kind == "cuda":
            with counters.update:
                _update(run, world, state, sums)
    parameters = list(objective.parameters())
    if is_ddp:
        gradient = sum(parameter.nbytes for parameter in parameters)
        buckets = -(-gradient // _DDP_BUCKET)
        collectives = (Collective("all-reduce", ranks, buckets, gradient),)
        counters.update.launches += buckets
    return StepTrace(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_tensors=len(parameters),
        phases=phases,
        collectives=tuple(_of_step(each, accumulate) for each in collectives),
        launches=counters.of_step(accumulate) if kind == "cuda" else None,
    )


def _of_step(collective: Collective, micro_batches: int) -> Collective:
    """Return the collectives of a step, from those of its last micro-batch."""
    # gradients of replicas are all-reduced after the last micro-batch only
    times = 1 if collective.kind == "all-reduce" else micro_batches
    return collective._replace(calls=collective.calls * times, bytes=collective.bytes * times)


@final
class _Counters:
    """Launches of one micro-batch, forward and backward, and of the update."""

    def __init__(self) -> None:
        self.forward, self.backward, self.update = (LaunchCounter() for _ in range(3))

    def fuse(self, blocks: Sequence[nn.Module]) -> None:
        """Count fused operators: in blocks of the forward pass, and in all of the backward pass."""

        def begin(*_: object) -> None:
            self.forward.is_compiled = True

        def end(*_: object) -> None:
            self.forward.is_compiled = False

        for block in blocks:
            block.register_forward_pre_hook(begin)
            block.register_forward_hook(end)
        self.backward.is_compiled = bool(blocks)  # nearly all of it is in blocks

    def of_step(self, micro_batches: int) -> StepLaunches:
        """Return the counts of a step."""
        forward, backward, update = self.forward, self.backward, self.update
        times = ((forward, micro_batches), (backward, micro_batches), (update, 1))
        names = ("forward", "backward", "update")
        return StepLaunches(
            compiled=backward.is_compiled,
            launches={name: n * c.launches for name, (c, n) in zip(names, times, strict=True)},
            waits=sum(n * counter.waits for counter, n in times),
            misaligned_products=sum(n * counter.misaligned for counter, n in times),
        )


def follow_cuda_autocast(model: nn.Module) -> None:
    """Let a model on the CPU keep the activations that it would keep on CUDA under autocast.

    Layer norms have float32 inputs and outputs there.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))


def _sharded_objective(run: RunConfig, vocab: Vocab, ranks: int) -> tuple[World, Objective]:
    """Build rank 0's part of the objective on the meta device, in a fake process group."""
    uncompiled = replace(run, train=replace(run.train, compile=False))
    objective = build_objective(uncompiled, vocab)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    world = World(0, ranks, torch.device("meta"), dist.HashStore(), 1.0, dist.group.WORLD)
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    run.parallel.place(objective, blocks_of(objective.network), world, precision)
    return world, objective


def _state(run: RunConfig, objective: Objective, tracker: MemoryTracker) -> TrainState:
    """Allocate weights, optimiser and EMA."""
    objective.to_empty(device="cpu")
    optimizer = run.optim.build(objective.parameters())
    tracker.add_parameters(list(objective.parameters()))
    tracker.add("optimiser", [list(state.values()) for state in optimizer.state.values()])
    decay = run.train.ema_decay
    ema = None if decay is None else EMA(objective.named_parameters(), decay)
    if ema is not None:
        tracker.add("ema", ema.values)
    return TrainState(objective=objective, module=objective, optimizer=optimizer, ema=ema)


def _micro_batch(
    run: RunConfig,
    objective: Objective,
    shape: tuple[int, int],
    tracker: MemoryTracker,
    counters: _Counters,
) -> Tensor:
    """Run a micro-batch forward and backward; return the sums of its metrics."""
    tokens = torch.zeros(shape, dtype=torch.int64)
    batch = Batch(tokens, torch.ones(shape, dtype=torch.bool), torch.zeros_like(tokens[:, 0]))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=bool(run.train.autocast))
    with autocast, tracker.track("forward"), counters.forward:
        outcome = objective(batch, 0, run.train.global_batch, 1.0)
    with tracker.track("backward"), counters.backward:
        outcome.loss.backward()
    return outcome.sums


def _update(run: RunConfig, world: World, state: TrainState, sums: Tensor) -> None:
    """Do what the training loop does after the last backward pass of a step."""
    parameters = state.objective.parameters()
    # one kernel for many gradients, which torch does not choose for fake tensors
    norm = nn.utils.clip_grad_norm_(parameters, run.optim.max_grad_norm, foreach=True)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    stats = world.reduce_step_stats(sums, norm, False)
    update(run, state, Gradients(0, state.objective.names, stats))
