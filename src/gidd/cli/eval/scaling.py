"""Fit power laws to the compute-efficient frontiers of training runs.

Examples:
  gidd eval scaling runs/tiny-p0 runs/small-p0 runs/tiny-p0.2 runs/small-p0.2 --out scaling.json
  gidd eval scaling runs/* --group-by objective
  gidd eval scaling --series masked=runs/a,runs/b uniform=runs/c,runs/d

`gidd plot scaling.json` draws the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gidd.cli.eval.report import ResultOptions, parse_evaluation, report
from gidd.cli.messages import print_message
from gidd.cli.model_options import Flat
from gidd.common.allowed import SEED, field_problems, integer


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Options of `gidd eval scaling`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")] = ()
    """Folders of runs (`--out` of `gidd train`)."""

    group_by: str = "p_uniform"
    """Setting whose values are the series: p_uniform, noise, objective, weighting, or a path in
    run.yaml such as backbone.width."""

    series: tuple[str, ...] = ()
    """Series by name, instead of --group-by: NAME=RUN,RUN ..."""

    points: Literal["all", "last"] = "all"
    """Validations to use: all of a run or its last one, when the learning rate has decayed."""

    min_flops: float = 0.0
    """Leave out points with fewer training FLOPs: early training follows no power law."""

    bootstrap: int = 1000
    """Number of resamples of the runs, for intervals."""

    seed: int = 0
    """Seed of the resamples."""

    result: Flat[ResultOptions] = field(default_factory=ResultOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(self, bootstrap=integer(1, 100_000), seed=SEED)
        if not 0 <= self.min_flops < math.inf:
            yield f"min_flops must be at least 0, got {self.min_flops}."
        names = [entry.partition("=") for entry in self.series]
        for name, _, runs in names:
            if not name or not all(runs.split(",")):
                yield f"series must be NAME=RUN,RUN, got {'='.join([name, runs])!r}."
        if len({name for name, _, _ in names}) < len(names):
            yield "series must have different names."
        if self.runs and self.series:
            yield "series cannot be combined with RUN...: name all runs in one of both ways."
        if not self.runs and not self.series:
            yield "series must be given if no RUN is, e.g. `gidd eval scaling runs/a runs/b`."

    def named_series(self) -> dict[str, list[Path]]:
        """Return the folders of --series by name."""
        pairs = [entry.partition("=") for entry in self.series]
        return {name: [Path(run) for run in runs.split(",")] for name, _, runs in pairs}


def main(arguments: Sequence[str]) -> None:
    """Parse, read the runs, fit and report."""
    options = parse_evaluation(ScalingOptions, "gidd eval scaling", __doc__, arguments)
    from gidd.evaluation.scaling.scaling import evaluate_scaling, read_series

    result = evaluate_scaling(
        read_series(options.runs, options.group_by, options.named_series()),
        min_flops=options.min_flops,
        last_only=options.points == "last",
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    report(result, options.result)
    for crossing in result.manifest["crossings"]:
        print_message(f"{crossing['text']}.")
    for note in result.manifest["notes"]:
        print_message(note)
