"""Plot training curves, results of evaluations or noise schedules to a PNG, PDF or SVG file.

Examples:
  gidd plot runs/nano
  gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.pdf
  gidd plot runs/nano-seed0 runs/nano-seed1 runs/nano-seed2
  gidd plot frontier.json --out frontier.svg
  gidd plot frontier.json --x steps --y entropy --group temperature
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
    from gidd.viz.run_log import RunLog

_MODEL_RECORD = "gidd.json"


def plot_command(
    sources: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.DisallowNone] = None,
    mean: Literal["seeds", "all", "none"] = "seeds",
    x: str = "",
    y: str = "",
    group: tuple[str, ...] = (),
) -> None:
    """Plot training curves, results of evaluations or noise schedules.

    Args:
        sources: Runs (`--out` of `gidd train`), results (`--out` of `gidd eval`), or models, whose
            noise is plotted.
        out: File that ends in .png, .pdf or .svg; by default curves.png in the folder of the first
            run, noise.png in the folder of the first model, or the first result with .png.
        mean: Runs to plot as one curve, their mean with a band from the smallest to the largest:
            runs that differ only by the seed, all of them, or none.
        x: Column of the rows of a result, instead of the plots of its kind; with --y.
        y: Column to plot against --x; its standard errors are in the column Y_se.
        group: Columns whose values have a curve each, with --x and --y.
    """
    from gidd.viz.figure import require_format

    if not sources:
        raise ConfigError("name at least one run, result or model, e.g. `gidd plot runs/nano`.")
    kinds = {_kind(source) for source in sources}
    if len(kinds) > 1:
        raise ConfigError(
            "a plot must have runs, results or models, not a mixture. Plot each kind to a file of "
            "its own."
        )
    if bool(x) != bool(y) or (x and kinds != {"result"}):
        raise ConfigError("--x and --y must be given together, for results.")
    first, kind = sources[0], kinds.pop()
    folder = first if first.is_dir() else first.parent
    default = {"result": first.with_suffix(".png"), "model": folder / "noise.png"}
    out = out or default.get(kind, folder / "curves.png")
    require_format(out)
    require_writable(out, "--out")
    if kind == "result":
        _plot_results(sources, out, x, y, group)
    elif kind == "model":
        _plot_noise(sources, out)
    else:
        _plot_runs(sources, out, mean)
    print_text(str(out))


def _kind(source: Path) -> str:
    is_model = (source / _MODEL_RECORD).is_file()
    return "result" if source.suffix == ".json" else "model" if is_model else "run"


def _plot_runs(sources: Sequence[Path], out: Path, mean: str) -> None:
    from gidd.viz.run_log import RunGroup, RunLog
    from gidd.viz.run_plot import plot_runs

    groups: dict[object, list[RunLog]] = {}
    for number, source in enumerate(sources):
        key = _without_seed(source) if mean == "seeds" else mean == "all"
        groups.setdefault(key or number, []).append(RunLog.read(source))
    plot_runs([RunGroup(_mean_name(logs, mean), logs) for logs in groups.values()], out)


def _mean_name(logs: Sequence[RunLog], mean: str) -> str:
    if mean == "all":
        return f"mean of {len(logs)} runs"
    return logs[0].name if len(logs) == 1 else f"{logs[0].name}: mean of {len(logs)} seeds"


def _without_seed(source: Path) -> str | None:
    """Return the configuration of a run without its seed; None without a checkpoint."""
    from gidd.evaluation.scaling import read_run_config

    try:
        _, run = read_run_config(source if source.is_dir() else source.parent)
    except GiddError:  # the curves of a run need no checkpoint
        return None
    return repr(replace(run, train=replace(run.train, seed=0)))


def _plot_results(
    sources: Sequence[Path], out: Path, x: str, y: str, group: tuple[str, ...]
) -> None:
    from gidd.evaluation.results import EvaluationResult
    from gidd.viz.result_plot import Panel, ResultTable, plot_results

    results = [EvaluationResult.read(source) for source in sources]
    kinds = sorted({result.kind for result in results})
    if len(kinds) > 1:
        raise ConfigError(
            f"results must be of one kind, got {', '.join(map(printable, kinds))}. Plot each kind "
            "to a file of its own."
        )
    tables = [
        ResultTable(
            label,
            result.rows,
            {name: number[:2] for name, number in result.measurements.items()},
            result.manifest,
        )
        for label, result in zip(_labels(sources, results), results, strict=True)
    ]
    plot_results(kinds[0], tables, out, Panel(x, y, group) if x else None)


def _labels(sources: Sequence[Path], results: Sequence[EvaluationResult]) -> list[str]:
    """Return the names of the models or, if these do not differ, of the files."""
    models = [result.manifest.get("model") for result in results]
    names = [str(cast(Any, m).get("name")) if isinstance(m, dict) else "" for m in models]
    if not all(names) or len(set(names)) < len(results):
        names = [source.stem for source in sources]
    return [printable(name) for name in names]


def _plot_noise(sources: Sequence[Path], out: Path) -> None:
    from gidd.models import load_pretrained
    from gidd.viz.noise_plot import NamedSchedule, plot_noise

    names = [printable(source.resolve().name) for source in sources]
    schedules = [load_pretrained(source).schedule for source in sources]
    plot_noise([NamedSchedule(*pair) for pair in zip(names, schedules, strict=True)], out)


def main(arguments: Sequence[str]) -> None:
    """Parse and plot."""
    parse(plot_command, arguments, prog="gidd plot", description=__doc__)
