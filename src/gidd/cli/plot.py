"""Plot training curves, results of evaluations or noise schedules to a PNG, PDF or SVG file.

Examples:
  gidd plot runs/nano
  gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.pdf
  gidd plot frontier.json --out frontier.svg
  gidd plot frontier.json --x steps --y entropy --group temperature
  gidd plot models/nano
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from gidd.cli.output import print_text, require_writable
from gidd.cli.parsing import parse
from gidd.common.terminal import printable
from gidd.errors import ConfigError, GiddError


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
        sources: Runs (`--out` of `gidd train`), results (`--out` of `gidd eval`) or models.
        out: File that ends in .png, .pdf or .svg; by default curves.png in the folder of the run,
            noise.png in the folder of the model, or the result with .png.
        mean: Runs to plot as one curve, their mean and range: other seeds only, all, or none.
        x: Column of the rows of a result, instead of the plots of its kind; with --y.
        y: Column to plot against --x; its standard errors are in the column Y_se.
        group: Columns whose values have a curve each, with --x and --y.
    """
    from gidd.viz.figure import require_format

    if not sources:
        raise ConfigError("name at least one run, result or model, e.g. `gidd plot runs/nano`.")
    kinds = {
        "result" if s.suffix == ".json" else "model" if (s / "gidd.json").is_file() else "run"
        for s in sources
    }
    if len(kinds) > 1:
        raise ConfigError("a plot must have runs, results or models, not a mixture.")
    if bool(x) != bool(y) or (x and kinds != {"result"}):
        raise ConfigError("--x and --y must be given together, for results.")
    if missing := [source for source in sources if not source.exists()]:
        raise ConfigError(
            f"{printable(str(missing[0]))} is not a file or a folder. Check the path."
        )
    first, kind = sources[0], kinds.pop()
    folder = first if first.is_dir() else first.parent
    default = {"result": first.with_suffix(".png"), "model": folder / "noise.png"}
    out = out or default.get(kind, folder / "curves.png")
    require_format(out)
    require_writable(out, "--out")
    if kind == "result":
        _plot_results(sources, out, x, y, group)
    elif kind == "model":
        from gidd.models import load_pretrained
        from gidd.viz.result_plot import plot_noise

        loaded = [(printable(s.resolve().name), load_pretrained(s).schedule) for s in sources]
        plot_noise(loaded, out)
    else:
        _plot_runs(sources, out, mean)
    print_text(str(out))


def _plot_runs(sources: Sequence[Path], out: Path, mean: str) -> None:
    from gidd.runs.export import read_run_config
    from gidd.viz.run_plot import RunGroup, RunLog, plot_runs

    logs: dict[object, list[RunLog]] = {}
    for index, source in enumerate(sources):
        key: object = "all" if mean == "all" else index
        if mean == "seeds":
            with suppress(GiddError):  # the curves of a run need no checkpoint
                _, run = read_run_config(source if source.is_dir() else source.parent)
                key = repr(replace(run, train=replace(run.train, seed=0)))
        logs.setdefault(key, []).append(RunLog.read(source))
    groups: list[RunGroup] = []
    for runs in logs.values():
        name = runs[0].name if len(runs) == 1 else f"{runs[0].name}: mean of {len(runs)} seeds"
        groups.append(RunGroup(f"mean of {len(runs)} runs" if mean == "all" else name, runs))
    plot_runs(groups, out)


def _plot_results(
    sources: Sequence[Path], out: Path, x: str, y: str, group: tuple[str, ...]
) -> None:
    from gidd.evaluation.results import EvaluationResult

    results = [EvaluationResult.read(source) for source in sources]
    from gidd.viz.result_plot import Panel, ResultTable, plot_results

    kinds = sorted({result.kind for result in results})
    if len(kinds) > 1:
        listed = ", ".join(map(printable, kinds))
        raise ConfigError(f"results must be of one kind, got {listed}.")
    # labels are the names of the models or, if these do not differ, of the files
    models = [result.manifest.get("model") for result in results]
    names = [str(cast(Any, m).get("name")) if isinstance(m, dict) else "" for m in models]
    if not all(names) or len(set(names)) < len(results):
        names = [source.stem for source in sources]
    tables = [
        ResultTable(printable(name), result.rows, result.measurements)
        for name, result in zip(names, results, strict=True)
    ]
    plot_results(kinds[0], tables, out, Panel(x, y, group) if x else None)


def main(arguments: Sequence[str]) -> None:
    """Parse and plot."""
    parse(plot_command, arguments, prog="gidd plot", description=__doc__)
