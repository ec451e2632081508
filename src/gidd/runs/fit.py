"""A training run from its configuration to its last checkpoint.

`out` contains `data/` (if it was prepared there), `checkpoints/`, `metrics.jsonl`, `tensorboard/`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from gidd.common.config.codec import to_yaml
from gidd.common.config.registry import UNREGISTERED, find_component
from gidd.common.devices import has_bf16
from gidd.common.terminal import shorten
from gidd.data.loading.loader import Loader
from gidd.data.tokenizers import TOKENIZER_FILE, Tokenizer
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.runs.data import TokenStream, open_data, require_same_samples, with_format
from gidd.runs.evaluate import build_evaluation
from gidd.runs.export import RUN_FILE
from gidd.runs.init_from import with_source
from gidd.training.build import GivenComponents, build_state, with_precision
from gidd.training.checkpoints.folder import RECORD
from gidd.training.checkpoints.manager import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.loop import OnTrainStep, Services, training_loop
from gidd.training.recorded import newest_run, require_same_training, run_from_plain
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import Speed, matmul_rate, training_flops_per_token
from gidd.training.reporting.trackers import Tracker
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World
from gidd.vocab import Vocab

Trackers = tuple[Sequence[Tracker], Sequence[str]]
"""Trackers to log metrics to, and notes about them for the report."""


class FitResult(NamedTuple):
    """The state of a run when `fit` returns."""

    complete: bool  # if False, the run was asked to stop and has been saved
    run: RunConfig  # the configuration; with `init_from`, its network is that of the source
    state: TrainState
    tokenizer: Tokenizer


def fit(
    run: RunConfig,
    out: Path,
    world: World,
    *,
    quiet: bool = False,
    trackers: Callable[[int], Trackers] = lambda start: ((), ()),
    components: GivenComponents | None = None,
    stream: TokenStream | None = None,
    callbacks: Sequence[OnTrainStep] = (),
) -> FitResult:
    """Train, resuming from the newest checkpoint in `out` if there is one. All ranks call this.

    `out` is on a file system that all ranks share. `quiet` prints nothing; `metrics.jsonl` is still
    written. `trackers` returns more trackers, given the first step of this process. `stream` is
    used in place of the data of the configuration. `callbacks` are called after each step.
    """
    run, source = with_source(with_format(run), out)
    saved = newest_run(out / "checkpoints")
    if saved is not None and run.train.autocast is None:  # as on the machine that started the run
        run = replace(run, train=replace(run.train, autocast=saved.train.autocast))
    run = with_precision(run, sum(world.sum([has_bf16(world.device)])) == world.size)
    run.check(world.size)
    components = components or GivenComponents()
    # constructors check options, before data is prepared
    noise, schedule = run.objective.noise, components.schedule
    is_ours = noise.name == UNREGISTERED or not find_component(noise.kind, noise.name).package
    if schedule is None and is_ours:  # others may name tokens, which are not known yet
        schedule = noise.build(vocab=Vocab(3, mask_id=2))
    if schedule is not None and components.weighting is None:
        run.objective.weighting.build(schedule=schedule)
    if saved is not None:
        require_same_training(saved, run)
    data = stream or open_data(run.data, out, world, quiet)
    tokenizer = data.tokenizer
    with (
        Watchdog(world, run.train.timeout).on() as watchdog,
        Checkpoints(
            out / "checkpoints", world, keep=run.train.keep, keep_every=run.train.keep_every
        ) as checkpoints,
    ):
        num_bytes = torch.tensor(tokenizer.num_bytes())  # all 0 for a tokenizer without text
        num_bytes = num_bytes if num_bytes.any() else None
        state = build_state(run, tokenizer.vocab, world, num_bytes, components)
        notes = restore(run, state, checkpoints, tokenizer)
        if source is not None and not state.step:
            notes += source.initialize(state, tokenizer)
        batches = data.batches(run, world, state.step)
        evaluate = build_evaluation(run, data.validation_split(), tokenizer, world, watchdog)
        used, tracker_notes = trackers(state.step) if world.is_rank_zero else ((), ())
        report = Report(
            out,
            num_steps=run.train.steps,
            start=state.step,
            enabled=world.is_rank_zero,
            quiet=quiet,
            trackers=used,
        )
        with closing(batches), report:
            warnings = (*data.warnings(), *warnings_of(run, world.device))
            for note in (*notes, *tracker_notes, *warnings):
                report.note(note)
            speed = build_speed(run, state, world)
            files = tokenizer.files() | {RUN_FILE: to_yaml(run)}
            services = Services(checkpoints, report, watchdog, speed, files)
            if isinstance(batches, Loader):
                services = services._replace(epochs=batches.epochs)
            complete = training_loop(run, world, state, batches, evaluate, services, callbacks)
    return FitResult(complete, run, state, tokenizer)


def warnings_of(run: RunConfig, device: torch.device) -> list[str]:
    """Return warnings about settings that waste time."""
    warnings: list[str] = []
    if run.train.autocast and not has_bf16(device):
        warnings.append(f"no fast bfloat16 on {device.type}: without --train.autocast it is faster")
    if run.train.steps < run.optim.warmup:
        warnings.append(
            f"train.steps = {run.train.steps} ends within optim.warmup = {run.optim.warmup}: the "
            f"learning rate stays below its peak. Use --optim.warmup {run.train.steps // 20}"
        )
    return warnings


def restore(
    run: RunConfig, state: TrainState, checkpoints: Checkpoints, tokenizer: Tokenizer
) -> list[str]:
    """Restore the newest valid checkpoint, if there is one; return notes for the report."""
    # without a checkpoint, an optimizer allocates its state in its first step
    restored = checkpoints.read_latest(lambda step: checkpoints.read(step, state.tensors()))
    if restored is None:
        return []
    (step, restored_notes), record = restored
    checkpoint = checkpoints.path(step)
    saved = run_from_plain(record.get("run"), f"{checkpoint / RECORD}: run")
    changed = require_same_training(saved, run)
    if "data.sources" in " ".join(changed):
        require_same_samples(saved, run, step)
    other = Tokenizer.load(checkpoint)
    if (other.fingerprint, other.vocab) != (tokenizer.fingerprint, tokenizer.vocab):
        raise DataError(
            f"the data was prepared with the tokenizer {tokenizer.fingerprint[:12]}, but "
            f"{checkpoint} was trained with {other.fingerprint[:12]}. Use its "
            f"{TOKENIZER_FILE}, or another --out to start a new run."
        )
    numbers = record.get("pending"), record.get("optimizer", {}), record.get("adamw_steps", {})
    if record.get("step") != step or not all(map(_are_numbers, numbers)):
        got = ", ".join(shorten(value) for value in (record.get("step"), *numbers))
        raise CheckpointError(
            f"{checkpoint / RECORD}: step must be {step}, pending, optimizer and adamw_steps "
            f"objects of finite numbers, got {got}. Copy the checkpoint from a backup."
        )
    state.restore(record)
    if step > run.train.steps:
        raise ConfigError(
            f"train.steps must be at least {step}, the steps that {checkpoint.parents[1]} has, got "
            f"{run.train.steps}. Give more steps, or another --out to start a new run."
        )
    return [*restored_notes, *changed, f"resumed from step {state.step}"]


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(item, int | float) and abs(item) < sys.float_info.max  # NaN is not less
        for item in cast("dict[str, Any]", value).values()
    )


def build_speed(run: RunConfig, state: TrainState, world: World) -> Speed:
    """Build the clock that measures tokens per second and, except on CPUs, MFU."""
    peak = None
    if world.device.type != "cpu":  # other processes share a CPU: no measurement is its peak
        dtype = torch.bfloat16 if run.train.autocast else torch.float32
        peak = matmul_rate(world.device, dtype) * world.size
    return Speed(
        tokens_per_step=run.train.global_batch * run.data.length,
        flops_per_token=training_flops_per_token(state.model.network, run.data.length),
        peak=peak,
    )
