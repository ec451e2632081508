"""Plot training curves, results of evaluations or noise schedules to a PNG file.

Examples:
  gidd plot runs/nano
  gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.png
  gidd plot runs/nano-seed0 runs/nano-seed1 runs/nano-seed2
  gidd plot frontier.json --out frontier.png
  gidd plot correction.json
  gidd plot self-correction-p0.json self-correction-p0.2.json
  gidd plot models/nano
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from gidd.cli.output import print_text, require_writable
from gidd.cli.parsing import parse
from gidd.common.terminal import printable
from gidd.errors import ConfigError, GiddError

if TYPE_CHECKING:
    from gidd.evaluation.results import EvaluationResult
    from gidd.viz.run_log import RunGroup

_MODEL_RECORD = "gidd.json"


def plot_command(
    sources: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.DisallowNone] = None,
    mean: Literal["seeds", "all", "none"] = "seeds",
) -> None:
    """Plot training curves, results of evaluations or noise schedules to a PNG file.

    Args:
        sources: Runs (`--out` of `gidd train`), results (`--out` of `gidd eval`), or models, whose
            noise is plotted.
        out: The PNG file; None is curves.png in the folder of the first run, noise.png in that of
            the first model, or the name of the first result with the suffix .png.
        mean: Runs to plot as one curve, their mean with a band from the smallest to the largest:
            those that differ only by the seed, all of them, or none.
    """
    if not sources:
        raise ConfigError("name at least one run, result or model, e.g. `gidd plot runs/nano`.")
    if all(_is_result(source) for source in sources):
        _plot_results(sources, out or sources[0].with_suffix(".png"))
    elif all((source / _MODEL_RECORD).is_file() for source in sources):
        _plot_noise(sources, out or sources[0] / "noise.png")
    elif any(_is_result(s) or (s / _MODEL_RECORD).is_file() for s in sources):
        raise ConfigError(
            "a plot must have runs, results or models, not a mixture. Plot each kind to a file of "
            "its own."
        )
    else:
        folder = sources[0] if sources[0].is_dir() else sources[0].parent
        _plot_runs(sources, out or folder / "curves.png", mean)


def _is_result(source: Path) -> bool:
    return source.suffix == ".json"


def _plot_runs(sources: Sequence[Path], out: Path, mean: str) -> None:
    from gidd.viz.run_log import RunGroup, RunLog
    from gidd.viz.training_plot import plot_runs

    logs = [RunLog.read(source) for source in sources]
    require_writable(out, "--out")
    if mean == "all":
        groups = [RunGroup(f"mean of {len(logs)} runs", logs)]
    elif mean == "seeds" and len(logs) > 1:
        groups = _groups_of_seeds(sources, logs)
    else:
        groups = [RunGroup(log.name, [log]) for log in logs]
    plot_runs(groups, out)
    print_text(str(out))


def _groups_of_seeds(sources: Sequence[Path], logs: Sequence[Any]) -> list[RunGroup]:
    """Return the runs that differ only by the seed as groups; others alone."""
    from gidd.evaluation.scaling import read_run_config
    from gidd.viz.run_log import RunGroup

    groups: dict[object, list[Any]] = {}
    for source, log in zip(sources, logs, strict=True):
        try:
            _, run = read_run_config(source if source.is_dir() else source.parent)
            key: object = repr(replace(run, train=replace(run.train, seed=0)))
        except GiddError:  # the curves of a run need no checkpoint
            key = len(groups)
        groups.setdefault(key, []).append(log)
    return [
        RunGroup(
            runs[0].name if len(runs) == 1 else f"{runs[0].name}: mean of {len(runs)} seeds", runs
        )
        for runs in groups.values()
    ]


def _plot_results(sources: Sequence[Path], out: Path) -> None:
    from gidd.evaluation.results import EvaluationResult
    from gidd.viz.figure import ResultRows
    from gidd.viz.result_plots import plot_results

    results = [EvaluationResult.read(source) for source in sources]
    kinds = sorted({result.kind for result in results})
    if len(kinds) > 1:
        raise ConfigError(
            f"results must be of one kind, got {', '.join(map(printable, kinds))}. Plot each kind "
            "to a file of its own."
        )
    require_writable(out, "--out")
    labels = _labels(sources, results)
    tables = [
        ResultRows(label, result.rows, result.manifest)
        for label, result in zip(labels, results, strict=True)
    ]
    plot_results(kinds[0], tables, out)
    print_text(str(out))


def _labels(sources: Sequence[Path], results: Sequence[EvaluationResult]) -> list[str]:
    """Return the shortest labels that differ: uniform noise, model, or name of the file."""
    noises = [_entry(result, "schedule", "p_uniform") for result in results]
    models = [_entry(result, "model", "name") for result in results]
    for labels in ([noise and f"p_uniform = {noise}" for noise in noises], models):
        if all(labels) and len(set(labels)) == len(results):
            return [label or "" for label in labels]
    return [printable(source.stem) for source in sources]


def _entry(result: EvaluationResult, *keys: str) -> str | None:
    value: Any = result.manifest
    for key in keys:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return None if value is None else printable(str(value))


def _plot_noise(sources: Sequence[Path], out: Path) -> None:
    from gidd.models import load_pretrained
    from gidd.viz.noise_plot import NamedSchedule, plot_noise

    require_writable(out, "--out")
    schedules = [
        NamedSchedule(printable(source.resolve().name), load_pretrained(source).schedule)
        for source in sources
    ]
    plot_noise(schedules, out)
    print_text(str(out))


def main(arguments: Sequence[str]) -> None:
    """Parse and plot."""
    parse(plot_command, arguments, prog="gidd plot", description=__doc__)
