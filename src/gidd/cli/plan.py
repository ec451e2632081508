"""Estimate memory, time, network traffic and failures of a run on hardware you do not have.

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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Column, Table

from gidd.cli.console import CliConsole
from gidd.cli.run_options import RunCommand, parse_run
from gidd.planning.hardware import Assumptions

if TYPE_CHECKING:
    from gidd.planning import RunPlan

Rows = Iterable[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunCommand):
    """Options of `gidd plan`."""

    ranks: int = 1
    """Number of processes, with one device each."""

    device: str = "h100"
    """h100, h200, b200, a100-80gb, a100-40gb, l4, rtx4090, or cpu to measure this machine."""

    vocab_size: int | None = None
    """Vocabulary size, needed if it does not follow from the run."""

    assumptions: Annotated[Assumptions, tyro.conf.arg(name="")] = field(default_factory=Assumptions)

    json: bool = False
    """Print JSON, in bytes and seconds."""


def main(arguments: Sequence[str]) -> None:
    """Parse the options, plan the run and print tables or JSON."""
    name, options, run = parse_run(PlanOptions, arguments, "gidd plan", __doc__ or "")
    from gidd.planning import named_device, plan_run
    from gidd.runs.init_from import with_source

    run, _ = with_source(run, Path("runs") / name)  # the network of --init-from
    device, size = named_device(options.device), options.vocab_size
    plan = plan_run(run, options.ranks, device, options.assumptions, vocab_size=size)
    if options.json:
        print(json.dumps(asdict(plan, dict_factory=_finite), indent=2))
        return
    console = CliConsole(highlight=False)
    console.print(
        f"{name}: {plan.num_parameters / 1e9:.3g}B parameters on {plan.ranks:,} x {options.device}"
    )
    for rows, caption in (
        _memory(plan),
        _time(plan),
        _traffic(plan),
        (_checkpoints(plan), ""),
        (_failures(plan), ""),
        (_assumptions(plan), ""),
    ):
        console.print(_table(rows, caption), end="")


def _table(rows: Rows, caption: str) -> Table | str:
    """Return a table whose first row is the header; columns of numbers are on the right."""
    (title, *columns), *body = rows
    if not body:
        return ""
    side = "right" if len(columns) > 2 else "left"
    table = Table(title, *(Column(column, justify=side) for column in columns))
    table.caption, table.caption_justify = caption or None, "left"
    for row in body:
        table.add_row(*row)
    return table


def _memory(plan: RunPlan) -> tuple[Rows, str]:
    from gidd.planning.memory import MEMORY_USES

    memory, phases = plan.memory, plan.memory.phases
    rows = [("memory per rank, GiB", *phases)]
    for kind in MEMORY_USES:
        sizes = [held.get(kind, 0) / 2**30 for held in phases.values()]
        if max(sizes) >= 0.0005:
            rows.append((kind, *(f"{size:.3f}" if size >= 0.0005 else "" for size in sizes)))
    rows.append(("total", *(f"{sum(held.values()) / 2**30:.3f}" for held in phases.values())))
    return rows, (
        f"{'fits' if memory.fits else 'DOES NOT FIT'}: peak memory {memory.peak / 2**30:.2f} GiB, "
        f"{memory.usable / 2**30:.2f} GiB usable\nmicro-batch {plan.rank_batch.micro} samples, "
        f"logits of a chunk {memory.logits / 2**30:.3f} GiB"
    )


def _time(plan: RunPlan) -> tuple[Rows, str]:
    speed, launching, caption = plan.throughput, plan.launching, ""
    rows = [("time and data", ""), ("FLOPs per token", f"{speed.flops_per_token / 1e9:.3g}e9")]
    rows.append(("MFU (assumed)", f"{plan.assumptions.mfu:.1%}"))
    if launching is not None:
        step, spent = launching.step, _format_seconds(launching.seconds)
        ratio = f"{launching.ratio:.2g} times the arithmetic"
        at = f"{spent} at {plan.assumptions.launch_microseconds:g} us ({ratio})"
        compiled = ", compiled" if step.compiled else ""
        rows.append((f"launches per step{compiled}", f"{launching.num_launches:,}, {at}"))
        rows.append(("waits for the GPU per step", f"{step.waits:,}"))
        rows.append(("misaligned matrix products", f"{step.misaligned_products:,}"))
        if launching.limits:
            rows.append(("MFU (limited by launches)", f"{speed.mfu:.2%}"))
            caption = (
                f"LAUNCHES ARE THE BOTTLENECK: {spent}, {ratio}.\nUse fewer and larger "
                "micro-batches (--train.accumulate, --train.global-batch)"
                + ("." if step.compiled else " or --train.compile.")
            )
    step_seconds = _format_seconds(speed.step_seconds)
    reading = f"{speed.data_bytes_per_second / 1e6:.3g} MB/s"
    rows += [
        ("HFU (with recomputation)", f"{speed.hfu:.1%}"),
        ("tokens per second", f"{speed.tokens_per_second:,.0f}"),
        ("step", f"{speed.tokens_per_step:,} tokens, {step_seconds}"),
        ("run", f"{speed.tokens:.4g} tokens, {speed.days:.2f} days without failures"),
        ("data", f"{speed.data_bytes / 1e12:.3g} TB, {reading}"),
    ]
    return rows, caption


def _traffic(plan: RunPlan) -> tuple[Rows, str]:
    rows = [("traffic per step", "ranks", "calls", "GB", "GB from other machines", "seconds")]
    if plan.traffic is None:
        return rows, ""
    for flow in plan.traffic.flows:
        kind, ranks, calls, size = flow.collective
        gigabytes = (f"{size / 1e9:.2f}", f"{flow.between_bytes / 1e9:.2f}")
        rows.append((kind, f"{ranks:,}", f"{calls:,}", *gigabytes, f"{flow.seconds:.3f}"))
    seconds = plan.traffic.seconds
    ratio = seconds / plan.throughput.step_seconds
    verdict = "can overlap with computation" if ratio < 1 else "THE NETWORK IS THE BOTTLENECK"
    return rows, f"{seconds:.3f} s, {ratio:.0%} of a step: {verdict}"


def _checkpoints(plan: RunPlan) -> Rows:
    cost = plan.checkpoint
    size = f"{cost.bytes / 1e9:,.1f} GB, {cost.bytes_per_rank / 1e9:.3g} GB per rank"
    yield "checkpoints", ""
    yield "checkpoint size", size
    yield "training pauses for", _format_seconds(cost.pause_seconds)
    yield "complete on disk after", _format_seconds(cost.write_seconds)
    yield "tensor shards", f"{cost.pieces:,}"


def _failures(plan: RunPlan) -> Rows:
    both = (plan.as_configured, plan.at_best)
    yield f"a failure every {both[0].hours_between:.3g} hours", "as configured", "best interval"
    yield "checkpoint every", *(_format_seconds(f.interval_seconds) for f in both)
    yield "goodput", *(f"{f.goodput:.2%}" for f in both)
    yield "expected failures", *(f"{f.expected:.1f}" for f in both)
    yield "days with failures", *(f"{f.days:.2f}" for f in both)


def _assumptions(plan: RunPlan) -> Rows:
    device, speed = plan.device, plan.throughput
    yield "assumptions", ""
    yield f"{device.name}: memory", f"{device.memory / 1e9:.3g} GB"
    yield f"{device.name}: {speed.precision} peak", f"{speed.peak / 1e12:.3g}e12 FLOP/s"
    if device.link is not None:
        yield f"{device.name}: link within a machine", f"{device.link / 1e9:.3g} GB/s"
    for name, value in asdict(plan.assumptions).items():
        yield f"--{name.replace('_', '-')}", f"{value:g}"


def _format_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _finite(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Replace infinities, which JSON does not have, by None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields
    }
