"""Estimate memory, time, traffic, checkpoints and failures of a run on given devices.

Memory, traffic and kernel launches come from one traced step of the real model on fake ranks
(`step_trace`). Time, checkpoints and failures are arithmetic from `Assumptions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, final

import torch
from torch import nn

from gidd.common.devices import has_bf16
from gidd.data import tokenizers
from gidd.data.corpora import corpora_of
from gidd.data.manifest import DataManifest
from gidd.diffusion.loss import CHUNK_TOKENS, CHUNK_TOKENS_OF_KERNELS, HEAD_ROWS
from gidd.errors import ConfigError
from gidd.planning.hardware import Assumptions, Device
from gidd.planning.memory import Collective
from gidd.planning.step_trace import (
    RankBatch,
    StepLaunches,
    StepTrace,
    rank_batch,
    trace_in_child,
)
from gidd.training.build import build_objective, with_precision
from gidd.training.config import Diffusion, RunConfig
from gidd.training.parallel import FSDP
from gidd.training.reporting.speed import training_flops_per_token
from gidd.vocab import Vocab

_HOUR, _DAY = 3600.0, 86_400.0


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the rank that needs the most."""

    phases: dict[str, dict[str, int]]
    """By kind, at the peak of forward, backward and update."""
    logits: int
    """Logits of one chunk of tokens, the only ones in memory; part of "head and loss"."""
    peak: int
    usable: float
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
    tokens_per_step: int
    tokens_per_second: float
    step_seconds: float
    days: float
    data_bytes: int
    """Size of all tokens on disk, each read once."""
    data_bytes_per_second: float


@final
@dataclass(frozen=True, kw_only=True)
class LaunchCost:
    """Time in which the host launches the kernels of a step, while the device computes."""

    step: StepLaunches
    num_launches: int
    seconds: float
    ratio: float
    """Fraction of the time that the device needs to compute, at the assumed MFU."""
    limits: bool
    """Whether the device waits for the host."""


@final
@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """All collectives of one kind in one step, if nothing else uses the links."""

    collective: Collective
    machines: int
    between_bytes: float
    """Bytes that a device receives from other machines."""
    seconds: float


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Communication of one step, one collective after the other; can overlap with computation."""

    flows: tuple[CollectiveCost, ...]
    seconds: float


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """Size and duration of one checkpoint."""

    bytes: int
    bytes_per_rank: float
    """Bytes that a rank copies to host memory."""
    pause_seconds: float
    """Time that training waits: the copy, and writing beyond the steps it may run ahead."""
    write_seconds: float
    """Time until the checkpoint is complete on disk."""
    pieces: int
    """Tensor shards that the first rank collects to plan one checkpoint."""


@final
@dataclass(frozen=True, kw_only=True)
class Failures:
    """Cost of failures with a checkpoint every `interval_seconds`."""

    hours_between: float
    interval_seconds: float
    goodput: float
    """Fraction of time not spent on pauses, lost work and restarts."""
    expected: float
    days: float
    """Duration of the run with failures; infinite if it never completes."""


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
    launching: LaunchCost | None
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
    logits = _logits(run, device, size, batch.micro * run.data.length)
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
        memory=Memory(
            phases=traced.phases, logits=logits, peak=peak, usable=usable, fits=peak <= usable
        ),
        throughput=throughput,
        launching=launching,
        traffic=traffic(traced.collectives, ranks, device.link, assumptions),
        checkpoint=checkpoint,
        as_configured=failures(seconds, checkpoint, ranks, assumptions, interval),
        at_best=failures(seconds, checkpoint, ranks, assumptions),
    )


def vocab_size_of(run: RunConfig) -> int:
    """Return the vocabulary size of the run's tokenizer, without reading sources or downloading."""
    data, choice = run.data, run.data.tokenizer
    if data.folder is not None:
        return DataManifest.read(data.folder).vocab.size
    if (own := corpora_of(data.sources)[-1].tokenizer()) is not None:
        return own.vocab.size
    if isinstance(choice, int):
        return choice
    if choice == "bytes":
        return tokenizers.BYTES_VOCAB_SIZE
    if choice not in tokenizers.BUILT_KINDS and Path(choice).exists():
        return tokenizers.tokenizer_by_name(choice).vocab.size
    if choice not in tokenizers.GPT2_VOCAB_SIZES:
        raise ConfigError(
            f"the vocabulary size of data.tokenizer {choice!r} is unknown until it is loaded. "
            "Prepare the data and set --data.folder DIR, or set the size for `gidd plan`, e.g. "
            "--vocab-size 131072."
        )
    return tokenizers.GPT2_VOCAB_SIZES[choice]


def _logits(run: RunConfig, device: Device, vocab_size: int, num_tokens: int) -> int:
    """Return the bytes of the logits of one chunk of tokens."""
    chunk, width = CHUNK_TOKENS, vocab_size
    if device.kind == "cuda" and isinstance(run.objective, Diffusion):
        chunk, width = CHUNK_TOKENS_OF_KERNELS, -(-vocab_size // HEAD_ROWS) * HEAD_ROWS
    return min(chunk, num_tokens) * width * (2 if run.train.autocast else 4)


def _launching(
    step: StepLaunches | None, step_seconds: float, assumptions: Assumptions
) -> LaunchCost | None:
    """Compare the time to launch the kernels of a step with the time to compute it."""
    if step is None:
        return None
    number = sum(step.launches.values())
    seconds = number * assumptions.launch_microseconds * 1e-6
    ratio, limits = seconds / step_seconds, seconds > step_seconds
    return LaunchCost(step=step, num_launches=number, seconds=seconds, ratio=ratio, limits=limits)


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


def traffic(
    collectives: Iterable[Collective], ranks: int, link: float | None, assumptions: Assumptions
) -> Traffic | None:
    """Return the communication of a step; None if the `link` within a machine is unknown.

    Neighbouring ranks share a machine.
    """
    if link is None:
        return None
    flows = tuple(_collective_cost(each, ranks, link, assumptions) for each in collectives)
    return Traffic(flows=flows, seconds=sum(flow.seconds for flow in flows))


def _collective_cost(
    collective: Collective, ranks: int, link: float, assumptions: Assumptions
) -> CollectiveCost:
    """Return the time of a collective whose rings use all network adapters of a machine at once.

    All-gather and reduce-scatter: all bytes enter every machine once, split over its devices, and
    are exchanged inside the machine. All-reduce of replicas: twice the bytes of a shard, to reduce
    and to broadcast; devices of a machine that hold the same shard split them.
    """
    per_machine = min(assumptions.ranks_per_machine, ranks)
    if collective.kind == "all-reduce":
        rounds, inside = 2, max(1, per_machine * collective.ranks // ranks)  # replicas in a machine
    else:
        rounds, inside = 1, min(collective.ranks, per_machine)
    machines = -(-collective.ranks // inside)
    # up a tree and down, or around a ring
    hops = 2 * math.ceil(math.log2(machines)) if rounds == 2 else machines - 1
    entering = rounds * collective.bytes * (machines - 1) / machines / inside
    exchanged = rounds * collective.bytes * (inside - 1) / inside
    transfer = max(entering / (assumptions.network_gb_per_second * 1e9), exchanged / link)
    latency = collective.calls * hops * (assumptions.hop_microseconds * 1e-6)
    return CollectiveCost(
        collective=collective,
        machines=machines,
        between_bytes=entering,
        seconds=transfer + latency,
    )


def checkpoint_cost(
    traced: StepTrace, num_shards: int, hidden_seconds: float, assumptions: Assumptions
) -> CheckpointCost:
    """Return the cost of a checkpoint of a model in `num_shards` shards.

    Training may continue for `hidden_seconds` while a checkpoint is written.
    """
    held = traced.phases["update"]
    on_rank = held["parameters"] + held["optimiser"] + held.get("ema", 0)
    copies = 4 if "ema" in held else 3  # weights, two moments, EMA
    size = 4 * copies * traced.num_parameters
    copy_seconds = on_rank / (assumptions.copy_gb_per_second * 1e9)
    write_seconds = size / (assumptions.write_gb_per_second * 1e9)
    return CheckpointCost(
        bytes=size,
        bytes_per_rank=on_rank,
        pause_seconds=copy_seconds + max(0.0, write_seconds - hidden_seconds),
        write_seconds=write_seconds,
        pieces=copies * traced.num_tensors * num_shards,
    )


def failures(
    seconds: float,
    checkpoint: CheckpointCost,
    ranks: int,
    assumptions: Assumptions,
    interval: float | None = None,
) -> Failures:
    """Return the cost of failures in a run of `seconds` with a checkpoint every `interval` seconds.

    A failure costs the restart, half an interval of work, and the time until a checkpoint that was
    started is complete. An interval of None is the optimal one, sqrt(2 pause / rate) (Young 1974),
    but at least the time to write a checkpoint and at most the run.
    """
    rate = assumptions.failures_per_device_hour * ranks / _HOUR
    if interval is None:
        best = math.sqrt(2 * checkpoint.pause_seconds / rate) if rate else math.inf
        interval = min(max(best, checkpoint.write_seconds), seconds)
    lost = interval / 2 + checkpoint.write_seconds + 60 * assumptions.restart_minutes
    goodput = max(0.0, 1 - checkpoint.pause_seconds / interval - rate * lost)
    total = seconds / goodput if goodput else math.inf
    return Failures(
        hours_between=1 / rate / _HOUR if rate else math.inf,
        interval_seconds=interval,
        goodput=goodput,
        expected=rate * total if rate else 0.0,
        days=total / (24 * _HOUR),
    )
