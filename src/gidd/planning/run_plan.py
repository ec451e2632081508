"""Estimate memory, time, traffic, checkpoints and failures of a run on given devices.

Memory, traffic and kernel launches come from one traced step of the real model on fake ranks
(`step_trace`). Time, checkpoints and failures are arithmetic from `Assumptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, final

import torch
from torch import nn

from gidd.common.devices import has_bf16
from gidd.diffusion.loss import CHUNK_TOKENS, CHUNK_TOKENS_OF_KERNELS, HEAD_ROWS
from gidd.errors import ConfigError
from gidd.planning.assumptions import Assumptions
from gidd.planning.cluster import (
    CheckpointCost,
    Failures,
    Traffic,
    checkpoint_cost,
    failures,
    traffic,
)
from gidd.planning.hardware import Device
from gidd.planning.step_trace import RankBatch, StepLaunches, rank_batch, trace_in_child
from gidd.planning.vocab_size import vocab_size_of
from gidd.training.build import build_objective, with_precision
from gidd.training.config import Diffusion, RunConfig
from gidd.training.parallel import FSDP
from gidd.training.reporting.speed import training_flops_per_token
from gidd.vocab import Vocab

_DAY = 86_400.0


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the rank that needs the most."""

    phases: dict[str, dict[str, int]]
    """Bytes by kind at the peak of forward, backward and update."""

    logits: int
    """Logits of one chunk of tokens, the only ones in memory; part of "head and loss"."""

    peak: int
    """Peak memory of the step."""

    usable: float
    """Device memory available to tensors."""

    fits: bool


@final
@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Speed and duration without failures."""

    flops_per_token: float
    precision: Literal["bf16", "float32"]
    """Precision of the matrix products."""

    peak: float
    """FLOP/s of a device in that precision."""

    mfu: float
    """Model FLOPs utilisation: the assumed one, or the one that launching kernels allows."""

    hfu: float
    """Hardware FLOPs utilisation: MFU with recomputed activations counted."""

    tokens: int
    """Tokens of the complete run."""

    tokens_per_step: int
    tokens_per_second: float
    step_seconds: float
    days: float
    data_bytes: int
    """Size of all tokens on disk, each read once."""

    data_bytes_per_second: float
    """Bytes per second read by all ranks together."""


@final
@dataclass(frozen=True, kw_only=True)
class Launching:
    """Time in which the host launches the kernels of a step, while the device computes."""

    step: StepLaunches
    num_launches: int
    """Kernels of one step."""

    seconds: float
    ratio: float
    """Fraction of the time that the device needs to compute, at the assumed MFU."""

    limits: bool
    """Whether the device waits for the host."""


@final
@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Estimated needs of a run, in bytes and seconds."""

    ranks: int
    device: Device
    assumptions: Assumptions
    num_parameters: int
    rank_batch: RankBatch
    memory: Memory
    throughput: Throughput
    launching: Launching | None
    """None on CPUs."""

    traffic: Traffic | None
    """None if the device's link is unknown."""

    checkpoint: CheckpointCost
    as_configured: Failures
    """With a checkpoint every `train.save_every` steps."""

    at_best: Failures
    """With a checkpoint at the optimal interval (Young 1974)."""


def plan_run(
    run: RunConfig,
    ranks: int,
    device: Device,
    assumptions: Assumptions | None = None,
    *,
    vocab_size: int | None = None,
) -> RunPlan:
    """Estimate what a run needs on a number of ranks with one device each.

    Starts a process that traces one step of the real model; takes up to a minute at 10B parameters.
    `vocab_size` is needed if it does not follow from the run.
    """
    assumptions = assumptions or Assumptions()
    problems = [*assumptions.problems()]
    if ranks < 1:
        problems.append(f"ranks must be at least 1, got {ranks}.")
    if problems:
        raise ConfigError("\n".join(problems))
    run.check(ranks)
    run = with_precision(run, device.kind == "cuda" or has_bf16(torch.device("cpu")))
    size = vocab_size or vocab_size_of(run)
    vocab = Vocab(size, mask_id=size - 1 if isinstance(run.objective, Diffusion) else None)
    traced = trace_in_child(run, vocab, ranks, device.kind)
    batch, usable = rank_batch(run, ranks), device.memory * assumptions.usable_memory
    peak = max(sum(held.values()) for held in traced.phases.values())
    memory = Memory(
        phases=traced.phases,
        logits=_logits(run, device, size, batch.micro * run.data.length),
        peak=peak,
        usable=usable,
        fits=peak <= usable,
    )
    throughput = _throughput(run, ranks, device, assumptions.mfu, vocab)
    launching = _launching(traced.launches, throughput.step_seconds, assumptions)
    if launching is not None and launching.limits:
        throughput = _throughput(run, ranks, device, assumptions.mfu / launching.ratio, vocab)
    num_shards = run.parallel.shard_size or ranks if isinstance(run.parallel, FSDP) else 1
    hidden_seconds = (run.train.max_steps_ahead_of_save + 1) * throughput.step_seconds
    checkpoint = checkpoint_cost(traced, num_shards, hidden_seconds, assumptions)
    seconds, interval = throughput.days * _DAY, run.train.save_every * throughput.step_seconds
    return RunPlan(
        ranks=ranks,
        device=device,
        assumptions=assumptions,
        num_parameters=traced.num_parameters,
        rank_batch=batch,
        memory=memory,
        throughput=throughput,
        launching=launching,
        traffic=traffic(traced.collectives, ranks, device.link, assumptions),
        checkpoint=checkpoint,
        as_configured=failures(seconds, checkpoint, ranks, assumptions, interval),
        at_best=failures(seconds, checkpoint, ranks, assumptions),
    )


def _logits(run: RunConfig, device: Device, vocab_size: int, num_tokens: int) -> int:
    """Return the bytes of the logits of one chunk of tokens."""
    chunk, width = CHUNK_TOKENS, vocab_size
    if device.kind == "cuda" and isinstance(run.objective, Diffusion):
        chunk, width = CHUNK_TOKENS_OF_KERNELS, -(-vocab_size // HEAD_ROWS) * HEAD_ROWS
    return min(chunk, num_tokens) * width * (2 if run.train.autocast else 4)


def _launching(
    step: StepLaunches | None, step_seconds: float, assumptions: Assumptions
) -> Launching | None:
    """Compare the time to launch the kernels of a step with the time to compute it."""
    if step is None:
        return None
    number = sum(step.launches.values())
    seconds = number * assumptions.launch_microseconds * 1e-6
    return Launching(
        step=step,
        num_launches=number,
        seconds=seconds,
        ratio=seconds / step_seconds,
        limits=seconds > step_seconds,
    )


def _throughput(run: RunConfig, ranks: int, device: Device, mfu: float, vocab: Vocab) -> Throughput:
    network, length = build_objective(run, vocab).network, run.data.length
    flops = training_flops_per_token(network, length)
    peak = device.flops if run.train.autocast else device.float32_flops
    blocks = flops - 6 * cast(nn.Linear, network.head).weight.numel()
    # a forward pass of the blocks is a third of forward and backward
    recomputed = blocks / 3 if run.backbone.options.get("checkpoint_activations") else 0.0
    per_step = run.train.global_batch * length
    per_second = ranks * peak * mfu / flops
    tokens, bytes_each = run.train.steps * per_step, 2 if vocab.size <= 1 << 16 else 4
    return Throughput(
        flops_per_token=flops,
        precision="bf16" if run.train.autocast else "float32",
        peak=peak,
        mfu=mfu,
        hfu=mfu * (flops + recomputed) / flops,
        tokens=tokens,
        tokens_per_step=per_step,
        tokens_per_second=per_second,
        step_seconds=per_step / per_second,
        days=tokens / per_second / _DAY,
        data_bytes=tokens * bytes_each,
        data_bytes_per_second=per_second * bytes_each,
    )
