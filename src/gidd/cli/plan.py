"""Plan a run on devices that are not here: memory, time, traffic, checkpoints, failures.

Examples:
  gidd plan 10b --ranks 1024 --device h100
  gidd plan small-gidd-plus-0.1 --ranks 8 --device rtx4090 --train.accumulate 8
  gidd plan 3b --ranks 64 --device a100-80gb --parallel.shard-size 8 --mfu 0.45 --json
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import tyro
from rich.table import Table

from gidd.cli.console import CliConsole
from gidd.cli.run_options import ParallelKind, RunOption, parse_run
from gidd.planning.hardware import named_device
from gidd.planning.memory import KINDS
from gidd.planning.run_plan import Assumptions, RunPlan, plan


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """PlanOptions of `gidd plan`."""

    run: RunOption

    ranks: int = 1
    """Processes, with one device each."""

    device: str = "h100"
    """h100, h200, b200, a100-80gb, a100-40gb, l4, rtx4090, or cpu: this machine."""

    vocab_size: int | None = None
    """Ids of the tokenizer, where the run does not say."""

    parallel_kind: ParallelKind = None
    """Over several ranks: a whole model on each (replicate, DDP), or parts of it (shard, FSDP2)."""

    assumptions: Annotated[Assumptions, tyro.conf.arg(name="")] = field(default_factory=Assumptions)

    json: bool = False
    """Print JSON: bytes and seconds, without prefixes."""


def main(arguments: Sequence[str]) -> None:
    """Parse, plan, print."""
    name, options = parse_run(PlanOptions, arguments, "gidd plan", __doc__ or "")
    run = options.run
    made = plan(
        run,
        options.ranks,
        named_device(options.device),
        options.assumptions,
        vocab_size=options.vocab_size,
    )
    if options.json:
        print(json.dumps(_finite(asdict(made)), indent=2))
        return
    console = CliConsole(highlight=False)
    console.print(
        f"{name}: {made.num_parameters / 1e9:.3g}B parameters on {made.ranks:,} x {options.device}"
    )
    console.print(_memory(made))
    console.print(_rows("time and data", _time(made)))
    if made.traffic is not None:
        console.print(_traffic(made))
    console.print(_rows("checkpoints", _checkpoints(made)))
    console.print(_failures(made))
    console.print(_rows("assumed", _assumed(made)))


def _memory(made: RunPlan) -> Table:
    phases = made.memory.phases
    table = Table("memory of a rank, GiB", *phases)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in KINDS:
        sizes = [parts.get(name, 0) / 2**30 for parts in phases.values()]
        if max(sizes) >= 0.0005:
            table.add_row(name, *(f"{size:.3f}" if size >= 0.0005 else "" for size in sizes))
    totals = (f"{sum(parts.values()) / 2**30:.3f}" for parts in phases.values())
    table.add_section()
    table.add_row("total", *totals)
    verdict = "fits" if made.memory.fits else "DOES NOT FIT"
    table.caption = (
        f"{verdict}: {made.memory.peak / 2**30:.2f} GiB at most, "
        f"{made.memory.usable / 2**30:.2f} usable.\nMicro-batches of {made.share.micro} samples; "
        f"logits of a chunk: {made.memory.logits / 2**30:.3f} GiB"
    )
    table.caption_justify = "left"
    return table


def _time(made: RunPlan) -> Iterable[tuple[str, str]]:
    pace = made.pace
    yield "operations a token", f"{pace.flops_per_token / 1e9:.3g}e9"
    yield "share of peak with recomputation", f"{pace.hardware_share:.1%}"
    yield "tokens a second", f"{pace.tokens_per_second:,.0f}"
    yield "a step", f"{pace.tokens_per_step:,} tokens, {_duration(pace.step_seconds)}"
    yield "all tokens", f"{pace.tokens:.4g}, {pace.days:.2f} days without failures"
    yield "data", f"{pace.data_bytes / 1e12:.3g} TB, {pace.data_bytes_per_second / 1e6:.3g} MB/s"


def _traffic(made: RunPlan) -> Table:
    assert made.traffic is not None
    table = Table("traffic of a step", "ranks", "calls", "GB", "GB from other machines", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for flow in made.traffic.flows:
        kind, ranks, calls, size = flow.collective
        sizes = (f"{size / 1e9:.2f}", f"{flow.between_bytes / 1e9:.2f}", f"{flow.seconds:.3f}")
        table.add_row(kind, f"{ranks:,}", f"{calls:,}", *sizes)
    busy = made.traffic.seconds / made.pace.step_seconds
    verdict = "can hide behind computation" if busy < 1 else "THE NETWORK LIMITS THE SPEED"
    table.caption = f"{made.traffic.seconds:.3f} s, {busy:.0%} of a step: {verdict}"
    table.caption_justify = "left"
    return table


def _checkpoints(made: RunPlan) -> Iterable[tuple[str, str]]:
    saving = made.saving
    size = f"{saving.bytes / 1e9:,.1f} GB in all, {saving.bytes_per_rank / 1e9:.3g} GB of a rank"
    yield "size", size
    yield "training waits", _duration(saving.pause_seconds)
    yield "written after", _duration(saving.write_seconds)
    yield "pieces to plan", f"{saving.pieces:,}"


def _failures(made: RunPlan) -> Table:
    hours = made.as_configured.hours_between
    table = Table(f"a failure every {hours:.3g} hours", "as configured", "best interval")
    both = (made.as_configured, made.at_best)

    table.add_row("checkpoint every", *(_duration(f.interval_seconds) for f in both))
    table.add_row("goodput", *(f"{f.goodput:.2%}" for f in both))
    table.add_row("failures until complete", *(f"{f.expected:.1f}" for f in both))
    table.add_row("days", *(f"{f.days:.2f}" for f in both))
    return table


def _assumed(made: RunPlan) -> Iterable[tuple[str, str]]:
    device = made.device
    yield f"{device.name}: memory", f"{device.memory / 1e9:.3g} GB"
    peak = f"{made.pace.peak / 1e12:.3g}e12 operations a second"
    yield f"{device.name}: {made.pace.precision} peak", peak
    if device.link is not None:
        yield f"{device.name}: link in a machine", f"{device.link / 1e9:.3g} GB/s"
    for name, value in asdict(made.assumptions).items():
        yield f"--{name.replace('_', '-')}", f"{value:g}"


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title, "")
    for label, value in rows:
        table.add_row(label, value)
    return table


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _finite(value: Any) -> Any:
    """JSON knows no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
