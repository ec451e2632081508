"""Estimate memory, time, data, network traffic and failures of a run on hardware you do not have.

Examples:
  gidd plan 10b --ranks 1024 --device h100
  gidd plan small-gidd-plus-0.1 --ranks 8 --device rtx4090 --train.accumulate 8
  gidd plan 3b --ranks 64 --device a100-80gb --parallel.shard-size 8 --mfu 0.45 --json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Column, Table

from gidd.cli.output import CliConsole
from gidd.cli.run_options import RunCommand, parse_run
from gidd.common.config.allowed import choice, integer, require_allowed
from gidd.planning.hardware import DEVICES, Assumptions

if TYPE_CHECKING:
    from gidd.planning import RunPlan


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunCommand):
    """Options of `gidd plan`."""

    ranks: Annotated[int, integer(1)] = 1
    """Number of processes, with one device each."""
    device: Annotated[str, choice([*DEVICES, "cpu"])] = "h100"
    """h100, h200, b200, a100-80gb, a100-40gb, l4, rtx4090, or cpu to measure this machine."""
    vocab_size: Annotated[int, integer(2)] | None = None
    """Vocabulary size, needed if it does not follow from the run."""
    assumptions: Annotated[Assumptions, tyro.conf.arg(name="")] = field(default_factory=Assumptions)
    json: bool = False
    """Print JSON, in bytes and seconds."""


def main(arguments: Sequence[str]) -> None:
    """Parse the options, plan the run and print tables or JSON."""
    name, options = parse_run(PlanOptions, arguments, "gidd plan", __doc__ or "")
    run = options.run
    require_allowed(options)
    from gidd.planning import named_device, plan_run
    from gidd.runs.init_from import with_source

    run, _ = with_source(run, Path("runs") / name)  # the network of --init-from
    device, size = named_device(options.device), options.vocab_size
    plan = plan_run(run, options.ranks, device, options.assumptions, vocab_size=size)
    if options.json:
        # JSON has no infinity: null
        values = json.loads(json.dumps(asdict(plan)), parse_constant=lambda _: None)
        print(json.dumps(values, indent=2))
        return
    console = CliConsole(highlight=False)
    console.print(
        f"{name}: {plan.num_parameters / 1e9:.3g}B parameters on {plan.ranks:,} x {options.device}"
    )
    for table in _tables(plan):
        console.print(table, end="")


def _tables(plan: RunPlan) -> Iterator[Table | str]:
    from gidd.planning.counters import MEMORY_USES

    memory, speed = plan.memory, plan.throughput
    held = {
        phase: {use: f"{kinds[use] / 2**30:.3f}" if kinds.get(use) else "" for use in MEMORY_USES}
        | {"total": f"{sum(kinds.values()) / 2**30:.3f}"}
        for phase, kinds in memory["phases"].items()
    }
    yield _table("memory per rank, GiB", held)
    peak, usable, logits = (memory[name] / 2**30 for name in ("peak", "usable", "logits"))
    yield (
        f"{'fits' if memory['fits'] else 'DOES NOT FIT'}: peak memory {peak:.2f} GiB, {usable:.2f} "
        f"GiB usable\nmicro-batch {plan.rank_batch.micro} samples, logits of a chunk "
        f"{logits:.3f} GiB\n"
    )
    yield _table("time and data", {"": speed})
    yield _table("reading data", plan.data["reading"])
    yield _table("preparing data", {"": plan.data["preparation"]})
    if plan.traffic is not None and plan.traffic["flows"]:
        flows = [flow["collective"]._asdict() | flow for flow in plan.traffic["flows"]]
        yield _table("traffic per step", {flow["kind"]: flow for flow in flows})
        seconds = plan.traffic["seconds"]
        ratio = seconds / speed["step_seconds"]
        verdict = "can overlap with computation" if ratio < 1 else "THE NETWORK IS THE BOTTLENECK"
        yield f"{seconds:.3f} s, {ratio:.0%} of a step: {verdict}\n"
    yield _table("checkpoints", {"": plan.checkpoint})
    yield _table("failures", {"as configured": plan.as_configured, "best interval": plan.at_best})
    flags = {f"--{name.replace('_', '-')}": f"{x:g}" for name, x in vars(plan.assumptions).items()}
    yield _table("assumptions", {plan.device.name: vars(plan.device) | flags})


def _table(title: str, columns: Mapping[str, Mapping[str, object]]) -> Table:
    table = Table(title, *(Column(name, justify="right") for name in columns))
    for name in next(iter(columns.values())):
        cells = [_cell(name, values[name]) for values in columns.values()]
        if any(cells) and name not in ("kind", "name"):
            table.add_row(name.replace("_", " "), *cells)
    return table


def _cell(name: str, value: object) -> str:
    """Return a value in the unit that its name implies; nothing for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and "fraction" in value:
        verdict = "yes" if value["fraction"] <= 1 else "NO"
        return f"{verdict}, {value['fraction']:.3g} of {value['limit']}"
    if not isinstance(value, float | int):
        return value if isinstance(value, str) else ""
    if name.endswith("_per_second") and "bytes" in name:
        return f"{value / 1e6:.3g} MB/s"
    if "bytes" in name or name in ("memory", "link"):
        return f"{value / 1e9:,.3f} GB"
    if name.endswith("seconds"):
        return f"{value:,.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
    if name in ("mfu", "hfu", "goodput"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
