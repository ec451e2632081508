"""The training loop, and the two halves of its optimiser step: gradients and update."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gidd.common.config.codec import to_plain
from gidd.data.batch import Batch
from gidd.errors import TrainingDiverged
from gidd.training.checkpoints import Checkpoints
from gidd.training.config import RunConfig, TrainConfig
from gidd.training.metrics import NAMES, Metrics, summary
from gidd.training.objective import NoisyLoss
from gidd.training.parallel import sync_gradients_if_last
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import Speed
from gidd.training.state import TrainState, TrainStep
from gidd.training.watchdog import Watchdog
from gidd.training.world import StepStats, World

if TYPE_CHECKING:
    from jaxtyping import Float


class Evaluation(NamedTuple):
    """Result of an evaluation."""

    metrics: Metrics
    samples: Sequence[str] = ()
    """Generated samples, if any."""


OnTrainStep = Callable[[TrainState, Metrics], object]
"""Called on all ranks before the first step of this process, without metrics, and after each step.

What it changes in the state must be a function of `state.step`, so that a resumed run is the same;
`state.corrupt` and `requires_grad` of parameters are not saved. Reading the metrics of each step
makes the host wait for the device.
"""


class Services(NamedTuple):
    """Checkpoints, report, speed and watchdog of a run."""

    checkpoints: Checkpoints
    report: Report
    watchdog: Watchdog
    speed: Speed
    files: dict[str, str]
    """Text files that are written into every checkpoint."""
    epochs: Callable[[int], Metrics] = lambda step: {}
    """Epochs of each source of a mixture before a step."""


def training_loop(
    run: RunConfig,
    world: World,
    state: TrainState,
    batches: Iterator[Batch],
    evaluate: Callable[[TrainState], Evaluation],
    services: Services,
    callbacks: Sequence[OnTrainStep] = (),
) -> bool:
    """Minimise the objective from `state.step` to `run.train.steps`. All ranks enter.

    Everything that must survive a restart is in `state`; data order, windows and noise are
    functions of the step. Returns whether the run is complete; if a signal stopped it earlier, its
    state has been saved.
    """
    config, settings = run.train, {"run": to_plain(run)}
    checkpoints, report, watchdog, speed, files, epochs = services

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
    # discarded: out-of-memory and compile errors surface now
    scale = _scale(run, world, state, batch)
    arguments = state.step, config.global_batch, scale
    with fork_rng(world.device):
        with _autocast(run, world):
            first = batch.split(config.accumulate)[0]
            loss = step_loss(state, state.module, first, *arguments).loss
        loss.backward()
    del loss
    state.zero_grad()
    for on_step in callbacks:
        on_step(state, {})

    in_flight: deque[Gradients] = deque()
    while state.step < config.steps:
        watchdog.phase(state.step, "step")
        outcome = gradients(run, world, state, batch, watchdog.stop_requested)
        in_flight.append(outcome)
        if state.step % config.save_every >= config.max_steps_ahead_of_save:
            # bounds the steps that a kill loses: no further update before the save is complete
            watchdog.phase(state.step, "writing")
            with speed.paused():
                checkpoints.wait()
        learning_rate = update(run, state, outcome)
        speed.step()

        # all ranks enter; only rank 0 reports
        last = state.step == config.steps
        is_report_due = state.step % config.report_every == 0 or last
        is_save_due = state.step % config.save_every == 0 or last
        is_needed = is_report_due or is_save_due or _is_evaluation_due(config, state.step)
        keep = 0 if is_needed or callbacks else 1
        sums, norm, stop = _collect_statistics(state, in_flight, keep)
        for on_step in callbacks:
            metrics = {"grad_norm": norm, "learning_rate": learning_rate}
            on_step(state, summary(sums) | metrics)
        if is_report_due:
            metrics = summary(state.pending)
            metrics |= {"grad_norm": norm, "learning_rate": learning_rate}
            metrics |= epochs(state.step) | speed.wall(config.steps - state.step)
            report.training(state.step, metrics)
            state.pending = {}
        # saved first: an evaluation that fails loses no step
        if is_save_due or stop:
            watchdog.phase(state.step, "checkpoint")
            with speed.paused():
                checkpoints.save(state.step, state.tensors(), state.record() | settings, files)
        if stop and not last:  # the resumed run evaluates
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


def _collect_statistics(
    state: TrainState, in_flight: deque[Gradients], keep: int
) -> tuple[dict[str, float], float, bool]:
    """Collect the statistics of finished steps; all of them if the run stops.

    The last `keep` steps may still be running: reading them would synchronize. Returns
    the sums and the norm of the last step that was read, and whether to stop.
    """
    sums, norm, stop = dict[str, float](), 0.0, False
    while len(in_flight) > (0 if stop else keep):
        sums, norm, is_requested = in_flight.popleft().read()
        state.add(sums)
        stop = stop or is_requested
    return sums, norm, stop


class Gradients(NamedTuple):
    """Statistics of a step before its update; the gradients themselves are in the module."""

    step: int
    stats: StepStats

    @property
    def are_invalid(self) -> Float[Tensor, ""]:
        """1.0 if the loss or the gradient norm is not finite, else 0.0; on the device."""
        loss = self.stats.sums[NAMES.index("loss")]
        return (loss + self.stats.norm).isfinite().logical_not().float()

    def read(self) -> tuple[dict[str, float], float, bool]:
        """Wait for the sums, the norm before clipping, and whether a rank got a stop signal."""
        totals, norm, stop = self.stats.read()
        sums = dict(zip(NAMES, totals, strict=True))
        if not math.isfinite(sums["loss"]) or not math.isfinite(norm):
            raise TrainingDiverged(
                f"step {self.step}: the loss is {sums['loss']} and the gradient norm is {norm}. "
                "The weights were not updated. Resume from the last checkpoint with a lower "
                "optim.learning_rate or a longer optim.warmup."
            )
        return sums, norm, stop


def gradients(
    run: RunConfig, world: World, state: TrainState, batch: Batch, stop_requested: bool = False
) -> Gradients:
    """Run forward and backward passes on this rank's samples of a batch. All ranks enter."""
    sums = torch.zeros(len(NAMES), device=world.device)
    micros, scale = batch.split(run.train.accumulate), _scale(run, world, state, batch)
    arguments = state.step, run.train.global_batch, scale
    with fork_rng(world.device):
        _seed_dropout(dropout_seed(run.train.seed, state.step, world.rank), world.device)
        for k, micro in enumerate(micros):
            with sync_gradients_if_last(state.module, last=k == len(micros) - 1):
                with _autocast(run, world):
                    outcome = step_loss(state, state.module, micro, *arguments)
                outcome.loss.backward()
            sums += outcome.sums

    grad_norm = nn.utils.clip_grad_norm_(state.module.parameters(), run.optim.max_grad_norm)
    if isinstance(grad_norm, DTensor):
        grad_norm = grad_norm.full_tensor()
    stats = world.reduce_step_stats(sums, grad_norm, stop_requested)
    return Gradients(state.step, stats)


def update(run: RunConfig, state: TrainState, outcome: Gradients) -> float:
    """Take an optimiser step, unless this or an earlier step diverged; return the learning rate."""
    learning_rate = run.optim.learning_rate_at(state.step, run.train.steps)
    # fused optimizers, as `torch.amp.GradScaler` knows them; on Apple GPUs they ignore `found_inf`
    can_skip = outcome.stats.norm.device.type != "mps" and all(
        getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in state.optimizers
    )
    if not can_skip:
        outcome.read()  # waits for the device, and raises before the update
    invalid, before = outcome.are_invalid, state.has_diverged
    state.has_diverged = invalid if before is None else torch.maximum(invalid, before)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        if can_skip:  # read on the device: if it is 1.0, weights and state do not change
            optimizer.found_inf = state.has_diverged  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
    state.zero_grad()
    if state.ema:
        state.ema.update(state.model.named_parameters())
    state.step += 1
    return learning_rate


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's dropout masks in a step, so that a resumed run draws the same."""
    # 32 bits: torch's CPU generator ignores higher ones
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def fork_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore at the end of the block the states of torch's generators, which dropout seeds."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda")


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout draws from."""
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "mps"):
        torch.get_device_module(device).manual_seed(seed)


def _scale(run: RunConfig, world: World, state: TrainState, batch: Batch) -> float | Tensor:
    """Return the scale of losses for a mean over the targets of the global batch.

    DDP and FSDP average gradients over ranks; the factor `world.size` turns that average into a
    sum. If tokens are given, the targets of all ranks are counted, without waiting for the device.
    """
    count = state.corrupt.num_targets(batch)
    if isinstance(count, Tensor):
        return world.size / world.add(count.to(torch.float32)).clamp_min(1)
    return world.size * len(batch.tokens) / (run.train.global_batch * count)


class StepLoss(NamedTuple):
    """Result of a micro-batch."""

    loss: Float[Tensor, ""]
    """Scaled; call `backward` on it."""
    sums: Float[Tensor, " K"]
    """Sums over this rank's tokens, detached, in the order of `gidd.training.metrics.NAMES`."""


def step_loss(
    parts: TrainStep | TrainState,
    module: nn.Module,
    batch: Batch,
    step: int,
    num_samples: int,
    scale: float | Tensor,
) -> StepLoss:
    """Return loss and sums of a micro-batch of a step: noise, the objective, what is reported.

    `module` is the model itself, or its DDP wrapper.
    """
    noisy = parts.corrupt(batch, step, num_samples, scale)
    loss: NoisyLoss | Tensor = module(parts.objective, noisy)
    return StepLoss(loss if isinstance(loss, Tensor) else loss.loss, parts.metrics(noisy, loss))


def _autocast(run: RunConfig, world: World) -> torch.autocast:
    return torch.autocast(world.device.type, torch.bfloat16, enabled=bool(run.train.autocast))
