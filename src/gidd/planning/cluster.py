"""Time of collectives, cost of checkpoints, and the fraction of time left after failures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from gidd.planning.assumptions import Assumptions
from gidd.planning.memory import Collective
from gidd.planning.step_trace import StepTrace

_HOUR = 3600.0


@final
@dataclass(frozen=True, kw_only=True)
class Flow:
    """All collectives of one kind in one step."""

    collective: Collective
    machines: int
    """Machines that take part in each call."""

    between_bytes: float
    """Bytes that a device receives from other machines."""

    seconds: float
    """Duration if nothing else uses the links."""


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Communication of one step."""

    flows: tuple[Flow, ...]
    seconds: float
    """Duration of all flows one after the other; can overlap with computation."""


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """Size and duration of one checkpoint."""

    bytes: int
    """Size of weights, both moments and EMA on disk."""

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
    """Mean time between failures."""

    interval_seconds: float
    goodput: float
    """Fraction of time not spent on pauses, lost work and restarts."""

    expected: float
    """Expected number of failures in the run."""

    days: float
    """Duration of the run with failures; infinite if it never completes."""


def traffic(
    collectives: Iterable[Collective], ranks: int, link: float | None, assumptions: Assumptions
) -> Traffic | None:
    """Return the communication of a step; None if the `link` within a machine is unknown.

    Neighbouring ranks share a machine.
    """
    if link is None:
        return None
    flows = tuple(_flow(collective, ranks, link, assumptions) for collective in collectives)
    return Traffic(flows=flows, seconds=sum(flow.seconds for flow in flows))


def _flow(collective: Collective, ranks: int, link: float, assumptions: Assumptions) -> Flow:
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
    return Flow(
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
