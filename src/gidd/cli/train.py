"""Train a model, on one process or many. Ended at any moment, the same command continues.

Examples:
  gidd train nano
  gidd train nano --dry-run
  gidd train small-gidd-plus-0.1 --data.folder data/owt --train.accumulate 16 --out runs/small
  torchrun --nproc-per-node 8 -m gidd.cli train small-gidd-plus-0.1 --data.folder data/owt
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from gidd.cli.console import CliConsole
from gidd.cli.run_options import ParallelKind, RunOption, parse_run
from gidd.common.codec import to_plain, to_yaml
from gidd.planning.vocab_size import vocab_size_of
from gidd.runs.fit import Trackers, fit
from gidd.training.build import build_objective
from gidd.training.config import RunConfig
from gidd.training.reporting.trackers import (
    default_trackers,
    tensorboard_tracker,
    trackio_tracker,
    wandb_tracker,
)
from gidd.training.watchdog import STOPPED
from gidd.training.world import open_world
from gidd.vocab import Vocab

TRACKERS = {"wandb": wandb_tracker, "trackio": trackio_tracker, "tensorboard": tensorboard_tracker}
_GRACE = 30.0
"""Seconds that ranks wait for each other beyond train.timeout: the watch speaks first."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """TrainOptions of `gidd train`."""

    run: RunOption

    out: Path | None = None
    """The run's folder; runs/PRESET by default. A run that is there is continued."""

    parallel_kind: ParallelKind = None
    """Over several ranks: a whole model on each (replicate, DDP), or parts of it (shard, FSDP2)."""

    device: Literal["cpu", "cuda", "mps"] | None = None
    """What to compute on; by default the fastest there is."""

    tracker: tuple[Literal["tensorboard", "wandb", "trackio"], ...] | None = None
    """Who else gets the numbers: TensorBoard if it is installed. metrics.jsonl always does."""

    quiet: bool = False
    """Show nothing."""

    dry_run: bool = False
    """Print what would be trained, and stop."""


def main(arguments: Sequence[str]) -> None:
    """Parse, build, train."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # the data loader's: says jax is missing
    name, options = parse_run(TrainOptions, arguments, "gidd train", __doc__ or "")
    run, out = options.run, options.out or Path("runs") / name
    run.check(int(os.environ.get("WORLD_SIZE", "1")))
    if options.dry_run:
        _print_plan(run, out)
        return
    with open_world(options.device, run.train.timeout + _GRACE) as world:
        complete = fit(
            run,
            out,
            world,
            quiet=options.quiet,
            trackers=lambda start: _trackers(options, out, start),
        )
        first = world.is_rank_zero
    if not complete:
        if first:
            print(f"gidd: asked to stop; saved. The same command continues {out}.")
        raise SystemExit(STOPPED)


def _trackers(options: TrainOptions, out: Path, start: int) -> Trackers:
    """TensorBoard goes without saying, where it is installed; what was asked for must be there."""
    if options.tracker is None:
        return default_trackers(out, start)
    config = to_plain(options.run)
    return [TRACKERS[name](out, start, config=config) for name in options.tracker], []


def _print_plan(run: RunConfig, out: Path) -> None:
    """What would be trained: sizes of the real model, and every setting."""
    console = CliConsole()
    vocab_size = vocab_size_of(run)
    objective = build_objective(run, Vocab(vocab_size, mask_id=vocab_size - 1))
    blocks = sum(p.numel() for block in objective.network.blocks for p in block.parameters())
    total = sum(p.numel() for p in objective.parameters())
    train, length = run.train, run.data.length
    table = Table(show_header=False, box=None)
    for label, value in (
        ("folder", str(out)),
        ("parameters", f"{total:,}, of which {blocks:,} in blocks ({vocab_size:,} ids)"),
        ("weights, gradient, Adam", f"{16 * total / 2**30:.2f} GiB over all ranks"),
        ("tokens a step", f"{train.global_batch * length:,} ({train.global_batch} x {length})"),
        ("tokens in all", f"{train.steps * train.global_batch * length:,}"),
    ):
        table.add_row(label, value)
    console.print(table)
    console.print(to_yaml(run), highlight=False, markup=False)
