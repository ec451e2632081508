"""The training loop, and the two halves of the optimiser step that it repeats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gidd.common.codec import to_plain
from gidd.data.batch import Batch
from gidd.errors import TrainingDiverged
from gidd.training.checkpoints.checkpoints import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.objective import Metrics, ObjectiveOutput
from gidd.training.parallel import sync_gradients_if_last
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import Speed
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World


class Evaluation(NamedTuple):
    """What an evaluation found."""

    metrics: Metrics
    samples: Sequence[str] = ()
    """Texts of the model, if it made any."""


def train(
    run: RunConfig,
    world: World,
    state: TrainState,
    batches: Iterator[Batch],
    evaluate: Callable[[TrainState], Evaluation],
    checkpoints: Checkpoints,
    report: Report,
    watchdog: Watchdog,
    speed: Speed,
    files: dict[str, str],
) -> bool:
    """Minimise the objective from `state.step` to `run.train.steps`. All ranks enter.

    Everything that must survive a restart is in `state`; order, windows and noise are functions of
    the step. Returns whether the run is complete: it is not if a signal asked it to stop, in which
    case it has been saved. `files` go into every checkpoint.
    """
    config, settings = run.train, {"run": to_plain(run)}
    if state.step >= config.steps:
        return True
    watchdog.phase(state.step, "rehearsal")
    batch = next(batches).to(world.device)
    _rehearse(run, world, state, batch)

    while state.step < config.steps:
        watchdog.phase(state.step, "step")
        found = gradients(run, world, state, batch, watchdog.stop_asked)
        if state.step % config.save_every >= config.max_steps_ahead_of_save:
            # what a kill costs is bounded: no further update before the last checkpoint is there
            watchdog.phase(state.step, "writing")
            with speed.paused():
                checkpoints.wait()
        learning_rate = update(run, state, found)
        speed.step()

        # now and then (all ranks enter; reports and checkpoints know who writes)
        last = state.step == config.steps
        if due(state.step, config.report_every) or last:
            metrics = state.objective.summary(state.pending)
            metrics |= {"grad_norm": found.norm, "learning_rate": learning_rate}
            report.training(state.step, metrics | speed.wall(config.steps - state.step))
            state.pending = {}
        if due(state.step, config.evaluate_every) or last:
            watchdog.phase(state.step, "evaluation")
            with speed.paused():
                report.evaluation(state.step, *evaluate(state))
        if due(state.step, config.save_every) or last or found.stop:
            watchdog.phase(state.step, "checkpoint")
            with speed.paused():
                checkpoints.save(state.step, state.tensors(), state.record() | settings, files)
        if found.stop:
            break
        if not last:
            watchdog.phase(state.step, "data")
            batch = next(batches).to(world.device)

    checkpoints.wait()
    return state.step == config.steps


class Gradients(NamedTuple):
    """What is known of a step before its update; the gradients themselves are in the module."""

    sums: dict[str, float]
    """Of the objective, over the global batch."""

    norm: float
    """Before it was shortened."""

    stop: bool
    """Whether any rank was asked to stop."""


def gradients(
    run: RunConfig, world: World, state: TrainState, batch: Batch, stop_asked: bool = False
) -> Gradients:
    """Forward and backward on this rank's samples of a global batch. All ranks enter."""
    if run.model.dropout:
        torch.manual_seed(dropout_seed(run.train.seed, state.step, world.rank))
    # draw t and z_t, score them; backward
    sums = torch.zeros(len(state.objective.names), device=world.device)
    micros = batch.split(run.train.accumulate)
    for k, micro in enumerate(micros):
        with sync_gradients_if_last(state.module, last=k == len(micros) - 1):
            outcome = _forward(run, world, state, micro)
            outcome.loss.backward()
        sums += outcome.sums

    # what all ranks must know before the update: one sum over ranks, one wait for the device
    grad_norm = _clip(state.module, run.optim.max_grad_norm)
    totals, norm, stop = world.reduce_step_stats(sums, grad_norm, stop_asked)
    step_sums = dict(zip(state.objective.names, totals, strict=True))
    if not math.isfinite(step_sums["loss"]) or not math.isfinite(norm):
        raise TrainingDiverged(
            f"step {state.step}: the loss is {step_sums['loss']} and the gradient's norm {norm}. "
            "The weights are still those of the step before. Resume from the last checkpoint with "
            "a lower optim.learning_rate or a longer optim.warmup."
        )
    return Gradients(step_sums, norm, stop)


def update(run: RunConfig, state: TrainState, found: Gradients) -> float:
    """Change the weights by their gradients; returns the learning rate."""
    learning_rate = run.optim.learning_rate_at(state.step, run.train.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.ema:
        state.ema.update(state.objective.named_parameters())
    state.step += 1
    state.add(found.sums)
    return learning_rate


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Of the masks that a rank draws in a step, so that a run that is continued draws the same.

    It has 32 bits: of longer ones torch's generator on CPUs uses no more.
    """
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one."""
    return step % every == 0


def _forward(run: RunConfig, world: World, state: TrainState, micro: Batch) -> ObjectiveOutput:
    """Loss and sums of a micro-batch; the mean over the global batch is over ranks and micros.

    Whatever adds up gradients over ranks divides by their number: the scale makes up for that.
    """
    num_targets = state.objective.num_targets(micro.tokens.shape[1])
    scale = world.size / (run.train.global_batch * num_targets)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=run.train.autocast):
        return state.module(micro, state.step, run.train.global_batch, scale)


def _rehearse(run: RunConfig, world: World, state: TrainState, batch: Batch) -> None:
    """Forward and backward once, for nothing: what cannot work fails now, not after an hour."""
    outcome = _forward(run, world, state, batch.split(run.train.accumulate)[0])
    outcome.loss.backward()
    state.optimizer.zero_grad(set_to_none=True)


def _clip(module: nn.Module, max_norm: float) -> Tensor:
    """Shorten the gradient if it is too long; return how long it was, over all ranks."""
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
