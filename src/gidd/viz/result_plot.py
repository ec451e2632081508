"""Plots of noise schedules, and of results of every kind: columns x and y of rows, by group."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gidd.common.files import explain_damage
from gidd.common.terminal import printable
from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.viz.figure import COLOURS, Values, add_legend, drawing, finish, line_handle, require_few

_MARKERS, _LINES = ("o", "s", "^", "D", "v", "P", "X"), ("-", "--", ":", "-.")
Row = Mapping[str, Any]


class ResultTable(NamedTuple):
    """A result of an evaluation."""

    label: str
    rows: Sequence[Row]
    measurements: Mapping[str, tuple[Any, ...]] = {}  # values, standard errors, ...


class Panel(NamedTuple):
    """Axes with column y against column x; error bars are in the columns x_se and y_se."""

    x: str
    y: str
    group: tuple[str, ...] = ()  # a curve for every combination of the values of these columns
    along: tuple[str, ...] | None = None  # connect points along the first that varies, or along x


_LABELS = {
    "forward_passes": "forward passes",
    "entropy": "unigram entropy, nats",
    "flops": "training FLOPs",
    "gen_ppl": "generative perplexity",
    "min_p": "min-p",
    "nelbo": "NELBO, nats per token",
    "num_changed": "changed tokens",
    "self_accuracy": "self-accuracy",
    "steps": "denoising steps",
    "tokens": "tokens of the document",
    **{"wer": "word error rate after correction", "wer_before": "word error rate before"},
}
_SETTINGS = ("steps", "temperature", "min_p", "corrector", "corrector_steps")
_PANELS: dict[str, tuple[Panel, ...]] = {
    "correction": (Panel("wer_before", "wer", ("noise", "method")),),
    "frontier": (Panel("entropy", "gen_ppl", _SETTINGS, ("temperature", "steps", "min_p")),),
    "ppl": (Panel("tokens", "nelbo", along=()),),
    "samples": (Panel("entropy", "gen_ppl", along=()),),
    "self_correction": (
        Panel("temperature", "num_changed", ("forward_passes",)),
        Panel("num_changed", "gen_ppl", ("forward_passes",), ("temperature",)),
        Panel("num_changed", "entropy", ("forward_passes",), ("temperature",)),
        Panel("gen_ppl", "self_accuracy", ("forward_passes",), ("temperature",)),
    ),
}
"""Kind of a result -> its panels; results of other kinds show their measurements."""


def plot_results(
    kind: str, results: Sequence[ResultTable], out: Path, panel: Panel | None = None
) -> None:
    """Plot results of one kind to a file; `panel` chooses columns of their rows.

    Without values for the panels of a kind, such as those of a grader, measurements are plotted.
    """
    require_few(len(results), "results")
    with explain_damage("a result", "Evaluate again.", DataError):
        results, panels = _choose(kind, results) if panel is None else (results, [panel])
        rows = [row for result in results for row in result.rows]
        columns = sorted({name for row in rows for name in row})
        if panel is not None:
            _check_columns(panel, rows, columns)
        varying = {name for name in columns if len({str(row.get(name)) for row in rows}) > 1}
        for index, shown in enumerate(panels):
            along = (shown.x,) if shown.along is None else shown.along
            along = tuple(name for name in along if name in varying)[:1]
            group = tuple(name for name in shown.group if name in varying and name not in along)
            panels[index] = shown._replace(group=group, along=along)
        width, height = min(len(panels), 2), (len(panels) + 1) // 2
        with drawing(out, (5.5 * width + 1.5, 4.0 * height + 1.0)) as figure:
            grid = figure.subplots(height, width, squeeze=False).flat
            legend, *_ = [_draw_panel(*pair, results) for pair in zip(grid, panels, strict=True)]
            place = {"loc": "outside lower center", "ncols": 2 * width}
            add_legend(figure, [*legend.values()], [*legend], **place)


def _choose(kind: str, results: Sequence[ResultTable]) -> tuple[list[ResultTable], list[Panel]]:
    """Return the panels of a kind that have points, or one of measurements, and their rows."""
    for panels, rows_of in (
        (_PANELS.get(kind, ()), partial(_table, kind)),
        ((Panel("measurement", "value", along=()),), _measured),
    ):
        tables = [result._replace(rows=rows_of(result)) for result in results]
        rows = [row for table in tables for row in table.rows]
        if filled := [panel for panel in panels if _has_points(panel, rows)]:
            return tables, filled
    raise DataError("the results have nothing to plot. Evaluate again, or name --x and --y.")


def _check_columns(panel: Panel, rows: Sequence[Row], columns: Sequence[str]) -> None:
    allowed = ", ".join(map(printable, columns))
    for name in (panel.x, panel.y, *panel.group):
        if name not in columns:
            raise ConfigError(f"{printable(name)} must be a column of the rows: {allowed}.")
    if not _has_points(panel, rows):
        raise DataError(f"no row has numbers for --x {panel.x} and --y {panel.y}, of {allowed}.")


def _has_points(panel: Panel, rows: Sequence[Row]) -> bool:
    is_text = any(isinstance(row.get(panel.x), str) for row in rows)
    has_x = np.isfinite(_column(rows, panel.x)) | is_text
    return bool((has_x & np.isfinite(_column(rows, panel.y))).any())


def _measured(result: ResultTable) -> Sequence[Row]:
    measured = {n: v[:2] for n, v in result.measurements.items() if not n.endswith("_change")}
    tested = {name: value for name, value in measured.items() if value[1] is not None}
    shown = (tested or measured).items()  # counts and p-values have another scale
    return [{"measurement": name, "value": v, "value_se": error} for name, (v, error) in shown]


def _table(kind: str, result: ResultTable) -> Sequence[Row]:
    rows = [dict(row) for row in result.rows]
    for row in rows:
        if kind == "ppl":  # nats of a document -> per token
            nelbo, error, per = (_number(row.get(n)) for n in ("nelbo", "standard_error", "tokens"))
            per = per if per > 0 else np.nan
            row |= {"nelbo": nelbo / per, "nelbo_se": error / per}
        elif kind == "samples":
            row |= {"gen_ppl": np.exp(min(_number(row.get("gen_nll")), 700.0))}
    return rows


def _draw_panel(axes: Any, panel: Panel, results: Sequence[ResultTable]) -> dict[str, Any]:
    """Draw the curves of all results; return the handles of the legend by label."""
    rows = [row for result in results for row in result.rows]
    names = list(dict.fromkeys(str(row.get(panel.x)) for row in rows))
    is_text = any(isinstance(row.get(panel.x), str) for row in rows)
    groups = list(dict.fromkeys(_group(row, panel) for row in rows))
    legend: dict[str, Any] = {}
    for index, (place, group) in product(range(len(results)), enumerate(groups)):
        result = results[index]
        points = [row for row in result.rows if _group(row, panel) == group]
        if not points:
            continue
        colour = index if len(results) > 1 else place
        style = {
            "color": COLOURS[colour % len(COLOURS)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": _LINES[place // len(_MARKERS) % len(_LINES)] if panel.along else "",
        }
        if is_text:  # points of several curves stand beside each other
            curve = (index * len(groups) + place + 0.5) / (len(results) * len(groups))
            shift = 0.6 * (curve - 0.5)
            points = [{**p, panel.x: names.index(str(p.get(panel.x))) + shift} for p in points]
        _draw_curve(axes, points, panel, style)
        label = ", ".join(([result.label] if len(results) > 1 else []) + ([group] if group else []))
        legend[label or result.label] = line_handle(**style)
    _choose_scale(axes.yaxis, _column(rows, panel.y))
    if is_text:
        axes.set_xticks(range(len(names)), [printable(name) for name in names])
        for tick in axes.get_xticklabels():
            tick.set(parse_math=False, **{"rotation": 30, "ha": "right"} if len(names) > 5 else {})
    else:
        _choose_scale(axes.xaxis, _column(rows, panel.x))
    finish(axes, *(_LABELS.get(name, name) for name in (panel.x, panel.y)))
    return legend


def _group(row: Row, panel: Panel) -> str:
    shown = {_LABELS.get(name, name): row.get(name) for name in panel.group}
    return ", ".join(v if isinstance(v, str) else f"{n} {v}" for n, v in shown.items())


def _draw_curve(axes: Any, rows: Sequence[Row], panel: Panel, style: dict[str, Any]) -> None:
    for name in panel.along or ():
        rows = [rows[i] for i in np.argsort(_column(rows, name), kind="stable")]
    x, y = _column(rows, panel.x), _column(rows, panel.y)
    keep = np.isfinite(x) & np.isfinite(y)
    if not keep.any():
        return
    errors = {
        f"{axis}err": np.nan_to_num(np.abs(column[keep]))
        for axis, name in (("x", panel.x), ("y", panel.y))
        if np.isfinite(column := _column(rows, f"{name}_se")).any()
    }
    bars = {"capsize": 2.5, "elinewidth": 1.0, "markersize": 6}
    is_best = np.array([row.get("on_frontier") is not False for row in rows])[keep]
    if not is_best.all():  # hollow
        bars |= {"markerfacecolor": "white"}
        filled = style | {"linestyle": "", "zorder": 4}
        axes.plot(x[keep][is_best], y[keep][is_best], **filled)
    axes.errorbar(x[keep], y[keep], **errors, **bars, **style)


def _column(rows: Iterable[Row], name: str) -> Values:
    return np.array([_number(row.get(name)) for row in rows], dtype=np.float64)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else np.nan


def _choose_scale(axis: Any, values: Values) -> None:
    """Use a log scale if positive values differ widely; zero then has a place of its own."""
    finite = values[np.isfinite(values)]
    positive, set_scale = finite[finite > 0], getattr(axis.axes, f"set_{axis.axis_name}scale")
    if len(positive) and positive.max() >= 8 * positive.min():
        if (finite <= 0).any():
            set_scale("symlog", linthresh=positive.min(), linscale=0.5)
        else:
            set_scale("log")


_KINDS = {"clean": "-", "masked": "--", "replaced": ":"}  # kinds of noisy tokens, their lines


def plot_noise(schedules: Sequence[tuple[str, MixingSchedule]], out: Path) -> None:
    """Plot the fractions of noisy tokens over t, and the ELBO weights (Fig. 2), with labels.

    The weights are w_t(z_t, x) of Eq. 13 for a token that is clean, masked or replaced.
    """
    require_few(len(schedules), "schedules")
    logits = np.linspace(-9.2, 9.2, 400)  # t from 1e-4 to 1 - 1e-4, the times of training
    even = np.linspace(0.0, 1.0, 400)
    with drawing(out, (12.0, 5.0)) as figure:
        left, right = figure.subplots(1, 2)
        for (_, schedule), colour in zip(schedules, COLOURS, strict=False):
            for kind, values in _fractions(schedule, even).items():
                left.plot(even, values, _KINDS[kind], color=colour)
            for kind, values in _weights(schedule, 1 / (1 + np.exp(-logits))).items():
                keep = np.isfinite(values) & (values > 0)
                right.semilogy(logits[keep], values[keep], _KINDS[kind], color=colour)
        finish(left, "t", "fraction of tokens")
        finish(right, "log t / (1 - t): from clean to noise", "ELBO weight of a token")
        handles = [line_handle(color=colour) for colour in COLOURS[: len(schedules)]]
        handles += [line_handle(color="grey", linestyle=line) for line in _KINDS.values()]
        names = [*(label for label, _ in schedules), *_KINDS]
        add_legend(figure, handles, names, loc="outside lower center", ncols=len(names))


def _fractions(schedule: MixingSchedule, times: Values) -> dict[str, Values]:
    """Return the marginal probability of every kind of noisy token (Eq. 3)."""
    t, mask_id = torch.from_numpy(times), schedule.vocab.mask_id
    noise, clean = schedule.beta_pi(t), schedule.alpha(t).numpy()
    total = noise.sum(-1).numpy()
    if mask_id is None:
        return {"clean": clean, "replaced": total}
    masked = noise[:, mask_id].numpy()
    return {"clean": clean, "masked": masked, "replaced": total - masked}


def _weights(schedule: MixingSchedule, times: Values) -> dict[str, Values]:
    """Return w_t(z_t, x) (Eq. 13) of every kind of noisy token."""
    mask_id = schedule.vocab.mask_id
    x, other = [token for token in range(3) if token != mask_id][:2]
    values: dict[str, Values] = {}
    for kind, token in {"clean": x, "masked": mask_id, "replaced": other}.items():
        if token is not None:
            parts = torch.from_numpy(times).split(16)
            tokens = [(torch.full((len(t), 1), x), torch.full((len(t), 1), token)) for t in parts]
            weights = [elbo_weight(schedule, t, *z) for t, z in zip(parts, tokens, strict=True)]
            values[kind] = torch.cat(weights)[:, 0].numpy()
    return values
