"""Trace one training step of the real model on one of N ranks, without its memory or other ranks.

The objective of the run is built on the meta device, sharded by the run's own `Parallel` over a
fake process group of N ranks, and run forward and backward on fake tensors, which have shapes but
no data. Every allocation and every collective is counted on the way.

The fake process group is global to a process: `trace_in_child` starts another one for it.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from gidd.data.batch import Batch
from gidd.models.backbones.layers import Attention
from gidd.models.networks import blocks_of
from gidd.planning.memory import Collective, MemoryTracker
from gidd.training.build import build_objective
from gidd.training.config import RunConfig
from gidd.training.objective import Objective
from gidd.training.parallel import DDP
from gidd.training.state import EMA
from gidd.training.world import World
from gidd.vocab import Vocab

_DDP_BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces in one call."""


class RankBatch(NamedTuple):
    """Number of samples on the rank with the most."""

    samples: int
    """Samples per step."""

    micro: int
    """Samples per micro-batch."""


def rank_batch(run: RunConfig, ranks: int) -> RankBatch:
    """Return the batch sizes of the rank with the most samples."""
    samples = -(-run.train.global_batch // ranks)
    return RankBatch(samples, -(-samples // run.train.accumulate))


@final
@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """Memory and collectives of one rank in one training step."""

    num_parameters: int
    """Parameters of the complete model."""

    num_tensors: int
    """Parameter tensors of the model."""

    phases: dict[str, dict[str, int]]
    """Bytes by kind at the peak of forward, backward and update."""

    collectives: tuple[Collective, ...]
    """Collectives of all micro-batches."""


def trace_in_child(
    run: RunConfig, vocab: Vocab, ranks: int, kind: Literal["cuda", "cpu"]
) -> StepTrace:
    """Call `trace` in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        return child.submit(trace, run, vocab, ranks, kind).result()


def trace(run: RunConfig, vocab: Vocab, ranks: int, kind: Literal["cuda", "cpu"]) -> StepTrace:
    """Trace one step of rank 0. The fake process group stays initialised afterwards."""
    objective = _sharded_objective(run, vocab, ranks)
    if kind == "cuda" and run.train.autocast:
        follow_cuda_autocast(objective)
    length, micro = run.data.length, rank_batch(run, ranks).micro
    tracker = MemoryTracker(micro * length, vocab.size)
    with FakeTensorMode(allow_non_fake_inputs=True):
        objective.to_empty(device="cpu")
        optimizer = run.optim.build(objective.parameters())
        tracker.add_parameters(list(objective.parameters()))
        tracker.add("optimiser", [list(state.values()) for state in optimizer.state.values()])
        if run.train.ema_decay is not None:
            ema = EMA(objective.named_parameters(), run.train.ema_decay)
            tracker.add("ema", ema.values)
        batch = Batch(
            torch.zeros(micro, length, dtype=torch.int64),
            torch.ones(micro, length, dtype=torch.bool),
            torch.zeros(micro, dtype=torch.int64),
        )
        accumulates, ddp = run.train.accumulate > 1, isinstance(run.parallel, DDP) and ranks > 1
        # gradients of earlier micro-batches are kept outside the buckets that DDP reduces
        accumulated = objective.parameters() if ddp and accumulates else ()
        buffers = [torch.empty_like(parameter) for parameter in accumulated]
        tracker.add("gradients", buffers)
        # the second pass starts with gradients: those of an earlier micro-batch, or the buckets of
        # DDP, which are never freed
        for _ in range(2 if accumulates or ddp else 1):
            tracker.collectives.clear()
            _step(run, objective, batch, tracker)
    parameters = list(objective.parameters())
    collectives: list[Collective] = []
    for c in tracker.collectives.values():
        # gradients of replicas are all-reduced after the last micro-batch only
        times = 1 if c.kind == "all-reduce" else run.train.accumulate
        collectives.append(c._replace(calls=c.calls * times, bytes=c.bytes * times))
    if ddp:
        gradient = sum(parameter.nbytes for parameter in parameters)
        collectives = [Collective("all-reduce", ranks, -(-gradient // _DDP_BUCKET), gradient)]
    return StepTrace(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_tensors=len(parameters),
        phases=tracker.phases(),
        collectives=tuple(collectives),
    )


def follow_cuda_autocast(model: nn.Module) -> None:
    """Let a model on the CPU keep the activations that it would keep on CUDA under autocast.

    Layer norms have float32 inputs and outputs on CUDA, and attention stays in bf16.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
        elif isinstance(module, Attention):
            module.float32_on_cpu = False


def _sharded_objective(run: RunConfig, vocab: Vocab, ranks: int) -> Objective:
    """Build rank 0's part of the objective on the meta device, in a fake process group."""
    uncompiled = replace(run, train=replace(run.train, compile=False))
    objective = build_objective(uncompiled, vocab)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    world = World(0, ranks, torch.device("meta"), dist.HashStore(), 1.0, dist.group.WORLD)
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    run.parallel.place(objective, blocks_of(objective.network), world, precision)
    return objective


def _step(run: RunConfig, objective: Objective, batch: Batch, tracker: MemoryTracker) -> None:
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=run.train.autocast)
    with autocast, tracker.track("forward"):
        outcome = objective(batch, 0, run.train.global_batch, 1.0)
    with tracker.track("backward"):
        outcome.loss.backward()
