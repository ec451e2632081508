"""Checkpoints, failures, and what is left of the time between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from gidd.planning.step_trace import StepTrace

_HOUR = 3600.0


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """Checkpoints."""

    bytes: int
    """Weights, moments and average, in all."""

    bytes_per_rank: float
    """That a rank copies to its host."""

    pause_seconds: float
    """That training waits: for the copy, and for writing beyond the steps it may run ahead."""

    write_seconds: float
    """Until the checkpoint is there."""

    pieces: int
    """Parts of tensors that one checkpoint is planned from."""


@final
@dataclass(frozen=True, kw_only=True)
class Failures:
    """What failures cost with checkpoints every `interval_seconds`."""

    hours_between: float
    """Expected time from one failure to the next."""

    interval_seconds: float
    goodput: float
    """Share of time that ends up in the model: what is not pause, lost work or restart."""

    expected: float
    """Failures until the run is complete."""

    days: float
    """Until the run is complete; infinite if it never is."""


def saving(
    traced: StepTrace, parts: int, copy_rate: float, write_rate: float, hidden_seconds: float
) -> CheckpointCost:
    """What a checkpoint of a model in so many parts is.

    Rates are bytes per second, of one rank's copy and of all ranks' writing together. Writing may
    hide behind training for `hidden_seconds`.
    """
    held = traced.phases["update"]
    own = held["parameters"] + held["optimiser"] + held.get("ema", 0)
    kinds = 4 if "ema" in held else 3  # weights, their two moments, their average
    whole = 4 * kinds * traced.num_parameters
    return CheckpointCost(
        bytes=whole,
        bytes_per_rank=own,
        pause_seconds=own / copy_rate + max(0.0, whole / write_rate - hidden_seconds),
        write_seconds=whole / write_rate,
        pieces=kinds * traced.num_tensors * parts,
    )


def failures(
    seconds: float,
    made: CheckpointCost,
    rate: float,
    restart_seconds: float,
    interval: float | None = None,
) -> Failures:
    """What failures cost a run of so many seconds, at `rate` failures a second.

    A failure costs the restart, half an interval of work, and the time it takes until a checkpoint
    that was begun is there. An interval of None is the best one, sqrt(2 pause / rate) (Young 1974),
    but no shorter than it takes to write a checkpoint and no longer than the run.
    """
    if interval is None:
        best = math.sqrt(2 * made.pause_seconds / rate) if rate else math.inf
        interval = min(max(best, made.write_seconds), seconds)
    lost = interval / 2 + made.write_seconds + restart_seconds
    goodput = max(0.0, 1 - made.pause_seconds / interval - rate * lost)
    whole = seconds / goodput if goodput else math.inf
    return Failures(
        hours_between=1 / rate / _HOUR if rate else math.inf,
        interval_seconds=interval,
        goodput=goodput,
        expected=rate * whole if rate else 0.0,
        days=whole / (24 * _HOUR),
    )
