"""Fit power laws to the compute-efficient frontiers of training runs.

Examples:
  gidd eval scaling runs/tiny-p0 runs/small-p0 runs/tiny-p0.2 runs/small-p0.2 --out scaling.json
  gidd eval scaling runs/* --group-by objective
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gidd.cli.eval.report import ResultOptions, report
from gidd.cli.model_options import CheckedCommand, Flat, parse_checked
from gidd.common.config.allowed import SEED, integer, number
from gidd.common.messages import print_message

if TYPE_CHECKING:
    from gidd.evaluation.scaling import TrainingRun


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(CheckedCommand):
    """Options of `gidd eval scaling`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs (`--out` of `gidd train`)."""
    group_by: str = "p_uniform"
    """Setting whose values are the series: p_uniform, noise, objective, weighting or a path."""
    points: Literal["all", "last"] = "all"
    """Validations to use: all of a run or its last one, when the learning rate has decayed."""
    min_flops: float = 0.0
    """Leave out points with fewer training FLOPs: early training follows no power law."""
    bootstrap: int = 1000
    """Number of resamples of the runs, for intervals."""
    seed: int = 0
    """Seed of the resamples."""
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)

    allowed = {
        "bootstrap": integer(1, 100_000),
        "seed": SEED,
        "min_flops": number(lambda x: 0 <= x < float("inf"), "of at least 0"),
    }

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from super().problems()
        if not self.runs:
            yield "RUN must be at least one folder of `gidd train`, got none."


def main(arguments: Sequence[str]) -> None:
    """Parse, read the runs, fit and report."""
    options = parse_checked(ScalingOptions, "gidd eval scaling", __doc__, arguments)
    from gidd.evaluation.scaling import evaluate_scaling, read_training_run

    series: dict[str, list[TrainingRun]] = {}
    for run in map(read_training_run, options.runs):
        series.setdefault(run.label(options.group_by), []).append(run)
    result = evaluate_scaling(
        dict(sorted(series.items())),
        min_flops=options.min_flops,
        last_only=options.points == "last",
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    report(result, options.result)
    for found in result.manifest["crossings"]:
        ends = found["interval"]
        between = f" (95% interval {ends[0]:.2e} to {ends[1]:.2e})" if ends else ""
        above = f"{found['flat']} above {found['flops']:.2e} FLOPs{between}"
        print_message(f"{found['steep']} is lower than {above}.")
    if few := [name for name, runs in series.items() if len(runs) < 5]:
        print_message(f"the intervals of {', '.join(few)} are rough: fewer than 5 runs.")
