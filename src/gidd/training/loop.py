"""The training loop, and the two halves of its optimiser step: gradients and update."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gidd.common.codec import to_plain
from gidd.data.batch import Batch
from gidd.errors import TrainingDiverged
from gidd.training.checkpoints import Checkpoints
from gidd.training.config import RunConfig, TrainConfig
from gidd.training.objective import Metrics, ObjectiveOutput
from gidd.training.parallel import sync_gradients_if_last
from gidd.training.reporting import Report, Speed
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World


class Evaluation(NamedTuple):
    """Result of an evaluation."""

    metrics: Metrics
    samples: Sequence[str] = ()
    """Generated samples, if any."""


def training_loop(
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

    Everything that must survive a restart is in `state`; data order, windows and noise are
    functions of the step. `files` are written into every checkpoint. Returns whether the run is
    complete; if a signal stopped it earlier, its state has been saved.
    """
    config, settings = run.train, {"run": to_plain(run)}

    def report_evaluation() -> None:
        watchdog.phase(state.step, "evaluation")
        with speed.paused():
            report.evaluation(state.step, *evaluate(state))

    # interrupted between the save and the evaluation of this step; only rank 0 has the log
    if _is_evaluation_due(config, state.step) and any(
        world.sum([report.lacks_evaluation(state.step)])
    ):
        report_evaluation()
    if state.step >= config.steps:
        return True
    watchdog.phase(state.step, "dry run")
    batch = next(batches).to(world.device)
    _dry_run(run, world, state, batch)

    while state.step < config.steps:
        watchdog.phase(state.step, "step")
        found = gradients(run, world, state, batch, watchdog.stop_requested)
        if state.step % config.save_every >= config.max_steps_ahead_of_save:
            # bounds the steps that a kill loses: no further update before the save is complete
            watchdog.phase(state.step, "writing")
            with speed.paused():
                checkpoints.wait()
        learning_rate = update(run, state, found)
        speed.step()

        # all ranks enter; only rank 0 reports
        last = state.step == config.steps
        if state.step % config.report_every == 0 or last:
            metrics = state.objective.summary(state.pending)
            metrics |= {"grad_norm": found.norm, "learning_rate": learning_rate}
            report.training(state.step, metrics | speed.wall(config.steps - state.step))
            state.pending = {}
        # saved first: an evaluation that fails loses no step
        if state.step % config.save_every == 0 or last or found.stop:
            watchdog.phase(state.step, "checkpoint")
            with speed.paused():
                checkpoints.save(state.step, state.tensors(), state.record() | settings, files)
        if found.stop and not last:  # the resumed run evaluates
            break
        if _is_evaluation_due(config, state.step):
            report_evaluation()
        if not last:
            watchdog.phase(state.step, "data")
            batch = next(batches).to(world.device)

    checkpoints.wait()
    return state.step == config.steps


def _is_evaluation_due(config: TrainConfig, step: int) -> bool:
    return step > 0 and (step % config.evaluate_every == 0 or step == config.steps)


class Gradients(NamedTuple):
    """Statistics of a step before its update; the gradients themselves are in the module."""

    sums: dict[str, float]
    """Sums of the objective over the global batch."""

    norm: float
    """Gradient norm before clipping."""

    stop: bool
    """Whether any rank received a stop signal."""


def gradients(
    run: RunConfig, world: World, state: TrainState, batch: Batch, stop_requested: bool = False
) -> Gradients:
    """Forward and backward pass on this rank's samples of a global batch. All ranks enter."""
    torch.manual_seed(dropout_seed(run.train.seed, state.step, world.rank))
    sums = torch.zeros(len(state.objective.names), device=world.device)
    micros = batch.split(run.train.accumulate)
    for k, micro in enumerate(micros):
        with sync_gradients_if_last(state.module, last=k == len(micros) - 1):
            outcome = _forward(run, world, state, micro)
            outcome.loss.backward()
        sums += outcome.sums

    # one all-reduce and one wait for the device
    grad_norm = nn.utils.clip_grad_norm_(state.module.parameters(), run.optim.max_grad_norm)
    if isinstance(grad_norm, DTensor):
        grad_norm = grad_norm.full_tensor()
    totals, norm, stop = world.reduce_step_stats(sums, grad_norm, stop_requested)
    step_sums = dict(zip(state.objective.names, totals, strict=True))
    if not math.isfinite(step_sums["loss"]) or not math.isfinite(norm):
        raise TrainingDiverged(
            f"step {state.step}: the loss is {step_sums['loss']} and the gradient norm is {norm}. "
            "The weights were not updated. Resume from the last checkpoint with a lower "
            "optim.learning_rate or a longer optim.warmup."
        )
    return Gradients(step_sums, norm, stop)


def update(run: RunConfig, state: TrainState, found: Gradients) -> float:
    """Take an optimiser step; return the learning rate."""
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
    """Return the seed of a rank's dropout masks in a step, so that a resumed run draws the same.

    It has 32 bits because torch's CPU generator ignores higher ones.
    """
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _forward(run: RunConfig, world: World, state: TrainState, micro: Batch) -> ObjectiveOutput:
    """Return loss and sums of a micro-batch.

    The loss is scaled for a mean over the global batch. DDP and FSDP average gradients over ranks;
    the factor `world.size` turns that average into a sum.
    """
    num_targets = state.objective.num_targets(micro.tokens.shape[1])
    scale = world.size / (run.train.global_batch * num_targets)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=run.train.autocast):
        return state.module(micro, state.step, run.train.global_batch, scale)


def _dry_run(run: RunConfig, world: World, state: TrainState, batch: Batch) -> None:
    """Run one discarded forward and backward pass, so that OOM and compile errors surface now."""
    outcome = _forward(run, world, state, batch.split(run.train.accumulate)[0])
    outcome.loss.backward()
    state.optimizer.zero_grad(set_to_none=True)
