"""A training run from its configuration to its last checkpoint.

The body of `fit` is the library's diagram: data, model and state, checkpoints, batches, report,
loop. `out` contains `data/` (if it was prepared there), `checkpoints/`, `metrics.jsonl` and
`tensorboard/`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import torch

from gidd.common.codec import from_plain, to_yaml
from gidd.common.terminal import shorten
from gidd.data.loading.loader import Loader, open_split
from gidd.data.tokenizers import TOKENIZER_FILE, TOKENIZER_SETTINGS, Tokenizer
from gidd.errors import CheckpointError, DataError
from gidd.runs.data import data_warnings, ensure_prepared, loader_config
from gidd.runs.evaluate import build_evaluation
from gidd.training.build import build_state
from gidd.training.checkpoints.checkpoints import Checkpoints
from gidd.training.checkpoints.folder import RECORD, folder_name, read_record, steps_in
from gidd.training.config import Diffusion, RunConfig
from gidd.training.loop import train
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import Speed, matmul_rate, training_flops_per_token
from gidd.training.reporting.trackers import Tracker
from gidd.training.resume import require_same_training
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World

Trackers = tuple[Sequence[Tracker], Sequence[str]]
"""Trackers to log metrics to, and notes about them for the report."""


def fit(
    run: RunConfig,
    out: Path,
    world: World,
    *,
    quiet: bool = False,
    trackers: Callable[[int], Trackers] = lambda start: ((), ()),
) -> bool:
    """Train, resuming from the newest checkpoint in `out` if there is one. All ranks call this.

    `out` is on a file system that all ranks share. `quiet` prints nothing; `metrics.jsonl` is still
    written. `trackers` returns more trackers, given the first step of this process.

    Returns:
        Whether the run is complete; if not, it was asked to stop and has been saved.
    """
    run.check(world.size)
    require_same_run(run, out)  # before any data is prepared
    folder = ensure_prepared(run.data, out, world, quiet)
    tokenizer = Tokenizer.load(folder)
    with (
        Watchdog(world, run.train.timeout).on() as watchdog,
        Checkpoints(
            out / "checkpoints", world, keep=run.train.keep, keep_every=run.train.keep_every
        ) as checkpoints,
    ):
        num_bytes = torch.tensor(tokenizer.num_bytes())  # all 0 for a tokenizer without text
        state = build_state(run, tokenizer.vocab, world, num_bytes if num_bytes.any() else None)
        resume_notes = restore(run, state, checkpoints, tokenizer)
        loader = Loader(
            open_split(folder),
            loader_config(run, tokenizer),
            rank=world.rank,
            num_ranks=world.size,
            start=state.step,
            num_workers=run.data.workers,
        )
        evaluate = build_evaluation(run, folder, tokenizer, world, watchdog)
        used, tracker_notes = trackers(state.step) if world.is_rank_zero else ((), ())
        with (
            closing(loader),
            Report(
                out,
                num_steps=run.train.steps,
                start=state.step,
                enabled=world.is_rank_zero,
                quiet=quiet,
                trackers=used,
            ) as report,
        ):
            for note in (*resume_notes, *tracker_notes, *data_warnings(folder)):
                report.note(note)
            speed, files = build_speed(run, tokenizer, world), checkpoint_files(run, folder)
            return train(
                run, world, state, loader, evaluate, checkpoints, report, watchdog, speed, files
            )


def require_same_run(run: RunConfig, out: Path) -> None:
    """Refuse settings that differ from those of the newest checkpoint in `out`."""
    folder = out / "checkpoints"
    try:
        record = read_record(folder / folder_name(steps_in(folder)[-1]))
        saved = from_plain(RunConfig, record.get("run"))
    except (IndexError, OSError, ValueError):
        return  # no checkpoint, or a damaged one: `restore` reports it
    require_same_training(saved, run)


def restore(
    run: RunConfig, state: TrainState, checkpoints: Checkpoints, tokenizer: Tokenizer
) -> list[str]:
    """Restore the newest valid checkpoint, if there is one; return notes for the report."""
    restored = checkpoints.restore(state.tensors())
    if restored is None:
        return []
    checkpoint, record = checkpoints.path(restored.step), restored.record
    saved = from_plain(RunConfig, record.get("run"), f"{checkpoint / RECORD}: run")
    changed = require_same_training(saved, run)
    require_same_tokenizer(checkpoint, tokenizer)
    require_valid_progress(checkpoint / RECORD, restored.step, record)
    state.restore(record)
    return [*restored.notes, *changed, f"resumed from step {state.step}"]


def require_valid_progress(path: Path, step: int, record: Mapping[str, Any]) -> None:
    """Refuse a record whose step or sums since the last report are not what `TrainState` saved."""
    sums: Any = record.get("pending")
    are_sums = isinstance(sums, dict) and all(
        isinstance(value, int | float) and abs(value) < sys.float_info.max  # NaN is not less
        for value in cast("dict[str, Any]", sums).values()
    )
    if record.get("step") != step or not are_sums:
        raise CheckpointError(
            f"{path}: step must be {step} and pending an object of finite numbers, got "
            f"{shorten(record.get('step'))} and {shorten(sums)}. Copy the checkpoint from a "
            "backup, or use another --out to start a new run."
        )


def require_same_tokenizer(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Refuse data whose tokenizer differs from that of the checkpoint."""
    saved = Tokenizer.load(checkpoint)
    if (saved.fingerprint, saved.vocab) != (tokenizer.fingerprint, tokenizer.vocab):
        raise DataError(
            f"the data was prepared with the tokenizer {tokenizer.fingerprint[:12]}, but "
            f"{checkpoint} was trained with {saved.fingerprint[:12]}. Prepare the data with the "
            f"{TOKENIZER_FILE} of the checkpoint, or use another --out to start a new run."
        )


def build_speed(run: RunConfig, tokenizer: Tokenizer, world: World) -> Speed:
    """Build the clock that measures tokens per second and MFU."""
    sizes = run.model.build(tokenizer.vocab.size, run.data.length)
    dtype = torch.bfloat16 if run.train.autocast else torch.float32
    return Speed(
        tokens_per_step=run.train.global_batch * run.data.length,
        flops_per_token=training_flops_per_token(
            sizes, run.data.length, timed=isinstance(run.objective, Diffusion)
        ),
        peak=matmul_rate(world.device, dtype) * world.size,
    )


def checkpoint_files(run: RunConfig, folder: Path) -> dict[str, str]:
    """Return the text files saved with every checkpoint: the configuration and the tokenizer."""
    names = (TOKENIZER_FILE, TOKENIZER_SETTINGS)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    return texts | {"run.yaml": to_yaml(run)}
