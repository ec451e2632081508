"""What a run would need and how long it would take on devices that are not here.

Memory and traffic come from a step of the real model on pretended ranks (`plan_trace`). Time,
checkpoints and failures are arithmetic from `Assumptions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, final

from gidd.diffusion.fused import CHUNK_TOKENS
from gidd.errors import ConfigError
from gidd.planning.failures import CheckpointCost, Failures, failures, saving
from gidd.planning.hardware import Device
from gidd.planning.step_trace import RankBatch, StepTrace, share, trace_in_child
from gidd.planning.traffic import ClusterNetwork, Traffic, traffic
from gidd.planning.vocab_size import vocab_size_of
from gidd.training.config import Diffusion, RunConfig
from gidd.training.parallel import FSDP
from gidd.training.reporting.speed import training_flops_per_token
from gidd.vocab import Vocab

_HOUR, _DAY = 3600.0, 86_400.0


@final
@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What cannot be known from the run and the device."""

    mfu: float = 0.35
    """Share of the device's peak that the model's arithmetic reaches, recomputation not counted."""

    usable_memory: float = 0.9
    """Share of a device's memory that tensors can fill: libraries and gaps take the rest."""

    ranks_per_machine: int = 8
    """Devices that are linked directly."""

    network_gb_per_second: float = 40.0
    """That a device can receive from other machines: four fifths of a 400 Gb/s adapter each."""

    hop_microseconds: float = 10.0
    """Delay of passing something on to the next machine."""

    write_gb_per_second: float = 20.0
    """That all ranks together write to the file system."""

    copy_gb_per_second: float = 10.0
    """That a device copies to its host's memory; training waits for all of it."""

    failures_per_device_hour: float = 1.24e-4
    """7.9 hours between failures at 1,024 devices, as in Meta's research clusters (Kokolis et al.,
    HPCA 2025); Llama 3's training saw 2.0e-5."""

    restart_minutes: float = 5.0
    """From a failure to the next step: notice it, start again, read the checkpoint."""

    def problems(self) -> Iterable[str]:
        """What is wrong with these figures."""
        for name in ("mfu", "usable_memory"):
            if not 0 < getattr(self, name) <= 1:
                yield f"{name} must be in (0, 1], got {getattr(self, name)}. It is a share."
        positive = ("network", "write", "copy")
        for name in (*(f"{what}_gb_per_second" for what in positive), "ranks_per_machine"):
            if not 0 < getattr(self, name) < math.inf:
                yield f"{name} must be positive, got {getattr(self, name)}."
        for name in ("hop_microseconds", "failures_per_device_hour", "restart_minutes"):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be 0 or more, got {getattr(self, name)}."


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the fullest rank."""

    phases: dict[str, dict[str, int]]
    """At the fullest moment of forward, backward and update, by what they are."""

    logits: int
    """Of the chunk of tokens whose logits exist at once: a part of "head and loss"."""

    peak: int
    usable: float
    """Of the device."""

    fits: bool


@final
@dataclass(frozen=True, kw_only=True)
class Throughput:
    """How fast and how long, if nothing fails."""

    flops_per_token: float
    precision: Literal["bf16", "float32"]
    """Of the matrix products."""

    peak: float
    """Operations per second of a device in that precision."""

    hardware_share: float
    """Of the peak, with recomputed activations counted."""

    tokens: int
    """In all."""

    tokens_per_step: int
    tokens_per_second: float
    step_seconds: float
    days: float
    data_bytes: int
    """Tokens on disk, if all are read once."""

    data_bytes_per_second: float
    """That all ranks together read."""


@final
@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """All there is to say before a run. Bytes and seconds, without prefixes."""

    ranks: int
    device: Device
    assumptions: Assumptions
    num_parameters: int
    share: RankBatch
    memory: Memory
    pace: Throughput
    traffic: Traffic | None
    """None if the links of the device are not known."""

    saving: CheckpointCost
    as_configured: Failures
    """With checkpoints every `train.save_every` steps."""

    at_best: Failures
    """With checkpoints as often as Young and Daly advise."""


def plan(
    run: RunConfig,
    ranks: int,
    device: Device,
    assumptions: Assumptions | None = None,
    *,
    vocab_size: int | None = None,
) -> RunPlan:
    """Plan a run on so many ranks with one device each.

    Starts a process that follows one step of the real model; a minute for 10B parameters.

    Args:
        run: What would be trained.
        ranks: How many processes.
        device: What each has.
        assumptions: Everything else that enters.
        vocab_size: Ids of the tokenizer, where the run does not say.
    """
    assumptions = assumptions or Assumptions()
    problems = [*assumptions.problems()]
    if ranks < 1:
        problems.append(f"ranks must be at least 1, got {ranks}.")
    if problems:
        raise ConfigError("\n".join(problems))
    run.check(ranks)
    size = vocab_size or vocab_size_of(run)
    masked = isinstance(run.objective, Diffusion)
    traced = trace_in_child(
        run, Vocab(size, mask_id=size - 1 if masked else None), ranks, device.kind
    )
    pace = _pace(run, ranks, device, assumptions.mfu, size)
    parts = run.parallel.shard_size or ranks if isinstance(run.parallel, FSDP) else 1
    saved = saving(
        traced,
        parts,
        assumptions.copy_gb_per_second * 1e9,
        assumptions.write_gb_per_second * 1e9,
        hidden_seconds=(run.train.max_steps_ahead_of_save + 1) * pace.step_seconds,
    )
    rate = assumptions.failures_per_device_hour * ranks / _HOUR
    cost = partial(failures, pace.days * _DAY, saved, rate, 60 * assumptions.restart_minutes)
    network = ClusterNetwork(
        ranks=ranks,
        ranks_per_machine=assumptions.ranks_per_machine,
        between=assumptions.network_gb_per_second * 1e9,
        within=device.link,
        hop_seconds=assumptions.hop_microseconds * 1e-6,
    )
    return RunPlan(
        ranks=ranks,
        device=device,
        assumptions=assumptions,
        num_parameters=traced.num_parameters,
        share=share(run, ranks),
        memory=_memory(run, traced, ranks, size, device.memory * assumptions.usable_memory),
        pace=pace,
        traffic=traffic(run, traced.collectives, network),
        saving=saved,
        as_configured=cost(interval=run.train.save_every * pace.step_seconds),
        at_best=cost(),
    )


def _memory(
    run: RunConfig, traced: StepTrace, ranks: int, vocab_size: int, usable: float
) -> Memory:
    peak = max(sum(parts.values()) for parts in traced.phases.values())
    tokens = min(CHUNK_TOKENS, share(run, ranks).micro * run.data.length)
    return Memory(
        phases=traced.phases,
        logits=tokens * vocab_size * (2 if run.train.autocast else 4),
        peak=peak,
        usable=usable,
        fits=peak <= usable,
    )


def _pace(run: RunConfig, ranks: int, device: Device, mfu: float, vocab_size: int) -> Throughput:
    sizes, length = run.model.build(vocab_size, run.data.length), run.data.length
    flops = training_flops_per_token(sizes, length, timed=isinstance(run.objective, Diffusion))
    peak = device.flops if run.train.autocast else device.float32_flops
    blocks = flops - 6 * sizes.width * sizes.vocab_size
    again = blocks / 3 if run.model.checkpoint_activations else 0.0  # the forward pass of blocks
    per_step = run.train.global_batch * length
    per_second = ranks * peak * mfu / flops
    tokens, bytes_each = run.train.steps * per_step, 2 if vocab_size <= 1 << 16 else 4
    return Throughput(
        flops_per_token=flops,
        precision="bf16" if run.train.autocast else "float32",
        peak=peak,
        hardware_share=mfu * (flops + again) / flops,
        tokens=tokens,
        tokens_per_step=per_step,
        tokens_per_second=per_second,
        step_seconds=per_step / per_second,
        days=tokens / per_second / _DAY,
        data_bytes=tokens * bytes_each,
        data_bytes_per_second=per_second * bytes_each,
    )
