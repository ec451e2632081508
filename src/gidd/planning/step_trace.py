"""One training step of the real model on one of N ranks, followed without memory or partners.

The objective of the run is built on the meta device, divided by the run's own `Parallel` over a
process group that only pretends to have N ranks, and run forward and backward on tensors that have
shapes but no contents. Every allocation and every collective on the way is counted.

The pretended process group belongs to the whole process: `trace_in_child` uses another one.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from gidd.data.batch import Batch
from gidd.planning.cuda_rules import behave_as_on_cuda
from gidd.planning.memory import Collective, MemoryTracker
from gidd.training.build import build_objective
from gidd.training.config import RunConfig
from gidd.training.objective import Objective
from gidd.training.parallel import DDP
from gidd.training.state import EMA
from gidd.training.world import World
from gidd.vocab import Vocab

_DDP_BUCKET = 25 * 2**20
"""Bytes of gradients that DDP sums in one call."""


class RankBatch(NamedTuple):
    """What a rank works on at once."""

    samples: int
    """Of a step, on the rank that has most."""

    micro: int
    """Of a micro-batch."""


def share(run: RunConfig, ranks: int) -> RankBatch:
    """How many samples the fullest rank has."""
    samples = -(-run.train.global_batch // ranks)
    return RankBatch(samples, -(-samples // run.train.accumulate))


@final
@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """What a training step asks of one rank."""

    num_parameters: int
    """Of the whole model."""

    num_tensors: int
    """That these are divided into."""

    phases: dict[str, dict[str, int]]
    """Bytes at the fullest moment of forward, backward and update, by what they are."""

    collectives: tuple[Collective, ...]
    """Of one micro-batch."""


def trace_in_child(
    run: RunConfig, vocab: Vocab, ranks: int, kind: Literal["cuda", "cpu"]
) -> StepTrace:
    """`trace`, in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        return child.submit(trace, run, vocab, ranks, kind).result()


def trace(run: RunConfig, vocab: Vocab, ranks: int, kind: Literal["cuda", "cpu"]) -> StepTrace:
    """Follow one step of rank 0 of a run. Leaves a pretended process group behind."""
    objective = _divided_objective(run, vocab, ranks)
    if kind == "cuda" and run.train.autocast:
        behave_as_on_cuda(objective)
    length, micro = run.data.length, share(run, ranks).micro
    ledger = MemoryTracker(micro * length, vocab.size)
    with FakeTensorMode(allow_non_fake_inputs=True):
        objective.to_empty(device="cpu")
        optimizer = run.optim.build(objective.parameters())
        ledger.own(list(objective.parameters()))
        ledger.enter("optimiser", [list(state.values()) for state in optimizer.state.values()])
        if run.train.ema_decay is not None:
            ema = EMA(objective.named_parameters(), run.train.ema_decay)
            ledger.enter("ema", ema.values)
        batch = Batch(
            torch.zeros(micro, length, dtype=torch.int64),
            torch.ones(micro, length, dtype=torch.bool),
            torch.zeros(micro, dtype=torch.int64),
        )
        accumulates, ddp = run.train.accumulate > 1, _is_ddp(run, ranks)
        # gradients of earlier micro-batches wait outside the buffers that DDP sends from
        waiting = objective.parameters() if ddp and accumulates else ()
        buffers = [torch.empty_like(parameter) for parameter in waiting]
        ledger.enter("gradients", buffers)
        # in the second pass gradients are there from the start: those of an earlier micro-batch,
        # or the buffers of DDP, which are never let go
        for _ in range(2 if accumulates or ddp else 1):
            ledger.forget_collectives()
            _step(run, objective, batch, ledger)
        phases = ledger.phases()
    parameters = list(objective.parameters())
    collectives = ledger.collectives()
    if ddp:
        gradient = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        calls = -(-gradient // _DDP_BUCKET)
        collectives = (Collective("all-reduce", ranks, calls, gradient),)
    return StepTrace(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_tensors=len(parameters),
        phases=phases,
        collectives=collectives,
    )


def _divided_objective(run: RunConfig, vocab: Vocab, ranks: int) -> Objective:
    """The objective on the meta device, divided among ranks that do not exist."""
    plain = replace(run, train=replace(run.train, compile=False))
    objective = build_objective(plain, vocab)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with patch("gidd.training.world.new_host_group"):  # nobody would answer
        world = World(0, ranks, torch.device("cpu"), dist.HashStore(), 1.0)
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    with patch.object(nn.Module, "to_empty"):  # no memory yet
        run.parallel.place(objective, objective.network, world, precision)
    return objective


def _step(run: RunConfig, objective: Objective, batch: Batch, ledger: MemoryTracker) -> None:
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=run.train.autocast),
        ledger.during("forward"),
    ):
        outcome = objective(batch, 0, run.train.global_batch, 1.0)
    with ledger.during("backward"):
        outcome.loss.backward()


def _is_ddp(run: RunConfig, ranks: int) -> bool:
    return isinstance(run.parallel, DDP) and ranks > 1
