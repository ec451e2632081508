"""Trace one training step of the real model on one of N ranks, without its memory or other ranks.

The model is built on the meta device, sharded by the run's own `Parallel` over a fake process
group of N ranks, and run on fake tensors, which have shapes but no data. Every allocation and every
collective is counted on the way. The fake process group is global to a process: `trace_in_child`
starts another one for it.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.testing._internal.distributed.fake_pg import FakeStore

from gidd.common.devices import acting_as, has_bf16
from gidd.data.batch import Batch
from gidd.models.networks import blocks_of
from gidd.planning.counters import Collective, MemoryTracker
from gidd.training.build import build_step, with_precision
from gidd.training.config import RunConfig
from gidd.training.loop import step_loss
from gidd.training.optim import build_optimizers
from gidd.training.parallel import DDP, distribute
from gidd.training.state import EMA
from gidd.training.world import World
from gidd.vocab import Vocab

_DDP_BUCKET = 25 * 2**20  # bytes of gradients that DDP reduces in one call
Backend = Literal["cuda", "cpu"]


class RankBatch(NamedTuple):
    """Number of samples per step and per micro-batch on the rank with the most."""

    samples: int
    micro: int

    @classmethod
    def of(cls, run: RunConfig, ranks: int) -> Self:
        """Return the batch sizes of a run on a number of ranks."""
        samples = -(-run.train.global_batch // ranks)
        return cls(samples, -(-samples // run.train.accumulate))


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """Memory and collectives of one rank in one training step."""

    num_parameters: int  # of the complete model
    num_tensors: int  # parameter tensors of the model
    phases: dict[str, dict[str, int]]  # bytes by kind at the peak of forward, backward and update
    collectives: tuple[Collective, ...]  # of all micro-batches


def trace_in_child(run: RunConfig, vocab: Vocab, ranks: int, kind: Backend) -> StepTrace:
    """Call `trace` in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        return child.submit(trace, run, vocab, ranks, kind).result()


def trace(run: RunConfig, vocab: Vocab, ranks: int, kind: Backend) -> StepTrace:
    """Trace one step of rank 0. The fake process group stays initialised afterwards."""
    run = with_precision(run, kind == "cuda" or has_bf16(torch.device("cpu")))
    step = build_step(replace(run, train=replace(run.train, compile=False)), vocab)
    model = step.model
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    world = World(0, ranks, torch.device("meta"), dist.HashStore(), 1.0, dist.group.WORLD)
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    blocks = blocks_of(model.network)
    distribute(run.parallel, model, blocks, world, precision)
    if kind == "cuda" and run.train.autocast:
        follow_cuda_autocast(model)
    shape, accumulate = (RankBatch.of(run, ranks).micro, run.data.length), run.train.accumulate
    tracker = MemoryTracker(shape[0] * shape[1])
    is_ddp = isinstance(run.parallel, DDP) and ranks > 1

    def micro_batch() -> None:
        tokens = torch.zeros(shape, dtype=torch.int64)
        valid, segments = torch.ones(shape, dtype=torch.bool), tokens if run.data.packing else None
        batch = Batch(tokens, valid, torch.zeros_like(tokens[:, 0]), segments=segments)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=bool(run.train.autocast))
        with autocast, tracker.track("forward"):
            loss, _ = step_loss(step, model, batch, 0, run.train.global_batch, 1.0)
        with tracker.track("backward"):
            loss.backward()

    device = nullcontext() if kind == "cpu" else acting_as(kind)
    with device, FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        optimizers = build_optimizers(run.optimizer, model.network, run.optim)
        get_optimizer_state_dict(model, optimizers)  # allocates it
        decay = run.train.ema_decay
        tracker.parameters = parameters = list(model.parameters())
        tracker.add("parameters", parameters)
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        tracker.add("optimiser", [list(state.values()) for state in states])
        ema = None if decay is None else EMA(model.named_parameters(), decay)
        tracker.add("ema", [] if ema is None else ema.values)
        if is_ddp and accumulate > 1:
            # gradients of earlier micro-batches are kept outside the buckets that DDP reduces
            buffers = [torch.empty_like(parameter) for parameter in parameters]
            tracker.add("gradients", buffers)
        if is_ddp or accumulate > 1:
            # the pass that counts starts with gradients of an earlier micro-batch, or with the
            # buckets of DDP, which are never freed
            micro_batch()
            tracker.collectives.clear()
        micro_batch()
        phases, collectives = tracker.phases(), tuple(tracker.collectives.values())
    if is_ddp:
        gradient = sum(parameter.nbytes for parameter in parameters)
        buckets = -(-gradient // _DDP_BUCKET)
        collectives = (Collective("all-reduce", ranks, buckets, gradient),)
    return StepTrace(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_tensors=len(parameters),
        phases=phases,
        # gradients of replicas are all-reduced after the last micro-batch only
        collectives=tuple(
            Collective(kind, size, calls * n, volume * n)
            for kind, size, calls, volume in collectives
            for n in [1 if kind == "all-reduce" else accumulate]
        ),
    )


def follow_cuda_autocast(model: nn.Module) -> None:
    """Let a model on the CPU keep the activations that it would keep on CUDA under autocast.

    Layer norms have float32 inputs and outputs there.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
