"""Compute-efficient frontiers of training runs and their power laws (App. A of the paper).

python benchmarks/scaling.py runs/tiny-p0 runs/small-p0 runs/tiny-p0.2 runs/small-p0.2
python benchmarks/scaling.py runs/* --group-by objective --out scaling.json
gidd plot scaling.json --x flops --y nelbo --group series

Runs are folders of `gidd train`; runs of one value of --group-by (p_uniform, noise, objective,
weighting or a path in run.yaml) are a series. Fewer than five runs have rough intervals.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from script import parser_of, size

import gidd
from gidd.common.config.codec import KIND, to_plain
from gidd.common.files import explain_damage
from gidd.common.terminal import printable, shorten
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError, ConfigError, DataError, GiddError
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.models.backbones.dit_config import DiTConfig
from gidd.runs.export import RUN_FILE, read_run_config
from gidd.training.config import RunConfig
from gidd.training.reporting.speed import transformer_flops_per_token
from gidd.viz.run_plot import RunLog

Floats = NDArray[np.float64]

_REMEDY = "Give the folder of a run (--out of `gidd train`) that has saved a checkpoint."
_ALIASES = {
    "objective": f"objective.{KIND}",
    "noise": f"objective.noise.{KIND}",
    "weighting": f"objective.weighting.{KIND}",
    "p_uniform": "objective.noise.p_uniform",
}  # short names of settings in run.yaml

_DEFINITIONS = {
    "flops": "of forward and backward passes, embeddings included as in Hoffmann et al. (2022)",
    "frontier": "points of a series of which no other has as few FLOPs and as low a NELBO",
    "fit": "log NELBO = log coefficient + exponent * log FLOPs, least squares on the frontier",
    "interval": "95% percentile interval of a bootstrap that resamples runs, not points",
}


class TrainingRun(NamedTuple):
    """The configuration of a run and its validations."""

    folder: Path
    config: RunConfig
    tokenizer: str  # its fingerprint
    points: Sequence[Mapping[str, Any]]  # FLOPs and tokens so far, NELBO (NLL) and its error

    def label(self, setting: str) -> str:
        """Return the value of a setting of run.yaml, e.g. "p_uniform" or "backbone.width"."""
        value: Any = to_plain(self.config)
        for key in _ALIASES.get(setting, setting).split("."):
            if isinstance(value, dict) and key in value:
                value = cast("dict[str, Any]", value)[key]
            elif setting in _ALIASES:  # a noise without uniform part, or no noise at all
                noise = getattr(self.config.objective, "noise", None)
                return type(self.config.objective).__name__ if noise is None else noise.name
            else:
                raise ConfigError(
                    f"--group-by must be one of {', '.join(_ALIASES)} or a path in {RUN_FILE}: the "
                    f"run {printable(self.folder.name)} has no {shorten(key)}."
                )
        return printable(f"{setting.rpartition('.')[2]}={value}")


def read_training_run(folder: Path) -> TrainingRun:
    """Read the configuration, the tokenizer and the validations of a run."""
    checkpoint, run = read_run_config(folder)
    with explain_damage(str(checkpoint), _REMEDY, CheckpointError):
        tokenizer = Tokenizer.load(checkpoint)
    network = run.network_config(tokenizer.vocab.size)
    if run.init_from is not None or not isinstance(network, DiTConfig):
        described = f"init_from {shorten(run.init_from)} with the backbone {run.backbone.name}"
        raise DataError(f"{folder}: the training FLOPs of {described} are unknown. Leave it out.")
    per_token = transformer_flops_per_token(network, run.data.length)
    per_token += 6 * network.width * network.vocab_size  # embeddings, as Hoffmann et al. count them
    log, tokens = RunLog.read(folder), run.train.global_batch * run.data.length
    name = "nelbo"
    curve, errors = (log.curve("evaluation", column) for column in (name, f"{name}_se"))
    error_at = dict(zip(errors.steps.tolist(), errors.values.tolist(), strict=True))
    points = list[dict[str, Any]]()
    for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
        if step > 0 and value > 0:
            seen = {"run": log.name, "flops": step * tokens * per_token, "tokens": step * tokens}
            points.append(seen | {"nelbo": value, "nelbo_se": error_at.get(step)})
    if not points:
        raise DataError(f"{folder}: the log has no validation, which has nelbo.")
    return TrainingRun(folder, run, tokenizer.fingerprint, points)


class PowerLaw(NamedTuple):
    """NELBO = exp(log_coefficient) * FLOPs ** exponent."""

    exponent: float
    log_coefficient: float

    def crossing(self, other: Self) -> float:
        """Return the FLOPs above which this law is lower; infinite if the other one is steeper."""
        steeper = other.exponent - self.exponent
        log_flops = (self.log_coefficient - other.log_coefficient) / steeper if steeper > 0 else 700
        return math.exp(log_flops) if log_flops < 700 else math.inf


def on_frontier(flops: Floats, nelbo: Floats) -> NDArray[np.bool_]:
    """Return which points are pareto-optimal: no other has as few FLOPs and as low a NELBO."""
    order = np.lexsort((nelbo, flops))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(nelbo[order])[:-1]])
    is_lowest = np.zeros(len(flops), dtype=np.bool_)
    is_lowest[order] = nelbo[order] < best_before  # of equal points the first one
    return is_lowest


def fit_frontier(curves: Sequence[Floats]) -> PowerLaw | None:
    """Fit the frontier of runs with rows of FLOPs and NELBOs; None if all FLOPs are the same."""
    points = np.concatenate(curves, axis=1)
    x, y = np.log(points[:, on_frontier(*points)])
    if np.ptp(x) < 1e-6:
        return None
    exponent, log_coefficient = np.polyfit(x, y, 1)
    return PowerLaw(float(exponent), float(log_coefficient))


def bootstrap_fits(curves: Sequence[Floats], num: int, seed: int) -> list[PowerLaw]:
    """Fit `num` resamples of the runs; points of a run stay together. None for a single run."""
    shape = (num if len(curves) > 1 else 0, len(curves))
    chosen = np.random.default_rng(seed).integers(len(curves), size=shape)
    fits = (fit_frontier([curves[i] for i in indices]) for indices in chosen)
    return [fit for fit in fits if fit is not None]


def interval(values: Sequence[float]) -> list[float] | None:
    """Return the 95% percentile interval, also of infinite values; None without values."""
    return np.percentile(values, (2.5, 97.5), method="nearest").tolist() if values else None


def evaluate_scaling(
    series: Mapping[str, Sequence[TrainingRun]],
    *,
    min_flops: float = 0.0,
    last_only: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
) -> EvaluationResult:
    """Fit a power law to the frontier of every series of runs, by name.

    Points with fewer than `min_flops` are left out: early training follows no power law.
    `last_only` uses the last validation of every run, when the learning rate has decayed.
    """
    runs = [run for of_series in series.values() for run in of_series]
    if other := [run for run in runs if run.tokenizer != runs[0].tokenizer]:
        both = f"{runs[0].folder} and {other[0].folder}"
        raise DataError(f"{both} have different tokenizers: their NELBOs cannot be compared.")
    fits, resampled = dict[str, PowerLaw](), dict[str, list[PowerLaw]]()
    rows, numbers = list[dict[str, Any]](), dict[str, Measurement]()
    recorded, crossings = dict[str, Any](), list[dict[str, Any]]()
    for index, (name, of_series) in enumerate(series.items()):
        kept = [[p for p in run.points if p["flops"] >= min_flops] for run in of_series]
        kept = [points[-1:] if last_only else points for points in kept if points]
        if not kept:
            continue
        curves = [np.array([[p["flops"], p["nelbo"]] for p in points]).T for points in kept]
        best = on_frontier(*np.concatenate(curves, axis=1)).tolist()
        for point, is_best in zip(chain(*kept), best, strict=True):
            rows.append({"series": name, **point, "on_frontier": is_best})
        if (fit := fit_frontier(curves)) is None:
            continue
        fits[name], count = fit, len(of_series)
        resampled[name] = bootstrap_fits(curves, bootstrap, seed + index)
        exponents = [redrawn.exponent for redrawn in resampled[name]]
        error = float(np.std(exponents, ddof=1)) if len(exponents) > 1 else None
        numbers[f"exponent_{name}"] = Measurement(fit.exponent, error, count)
        coefficient = math.exp(min(fit.log_coefficient, 700.0))
        numbers[f"coefficient_{name}"] = Measurement(coefficient, None, count)
        recorded[name] = {"num_runs": count, **fit._asdict()}
        recorded[name]["exponent_interval"] = interval(exponents)
    if not fits:
        raise DataError(
            "a fit needs two points with different FLOPs on the frontier of a series. Add runs, "
            f"validate more often (--train.evaluate-every), or lower --min-flops {min_flops:.3g}."
        )
    for pair in combinations(fits, 2):  # where the steeper fit becomes the lower one
        steep, flat = sorted(pair, key=lambda name: fits[name].exponent)
        flops = fits[steep].crossing(fits[flat])
        if min(row["flops"] for row in rows) <= flops < math.inf:
            pairs = zip(resampled[steep], resampled[flat], strict=False)
            ends = interval([first.crossing(second) for first, second in pairs])
            crossings.append({"steep": steep, "flat": flat, "flops": flops, "interval": ends})
            numbers[f"crossing_{steep}_{flat}"] = Measurement(flops)
    manifest = {
        **{"gidd": gidd.__version__, "definitions": _DEFINITIONS},
        **{"min_flops": min_flops, "points": "last" if last_only else "all"},
        **{"bootstrap": bootstrap, "seed": seed},
        "runs": {str(run.folder): to_plain(run.config) for run in runs},
        "tokenizer": runs[0].tokenizer,
        **{"fits": recorded, "crossings": crossings},
    }
    return EvaluationResult(kind="scaling", measurements=numbers, manifest=manifest, rows=rows)


def main() -> None:
    """Read the runs, fit, print and save."""
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of `gidd train`")
    parser.add_argument("--group-by", default="p_uniform", help="setting that makes the series")
    parser.add_argument("--last", action="store_true", help="only the last validation of a run")
    parser.add_argument("--min-flops", type=float, default=0.0, help="leave out earlier points")
    parser.add_argument("--bootstrap", type=int, default=size(1000, 10), help="resamples")
    parser.add_argument("--seed", type=int, default=0, help="seed of the resamples")
    parser.add_argument("--out", type=Path, help="file for the result, which `gidd plot` draws")
    options = parser.parse_args()
    series = dict[str, list[TrainingRun]]()
    try:
        for run in map(read_training_run, options.runs):
            series.setdefault(run.label(options.group_by), []).append(run)
        result = evaluate_scaling(
            dict(sorted(series.items())),
            min_flops=options.min_flops,
            last_only=options.last,
            bootstrap=options.bootstrap,
            seed=options.seed,
        )
    except GiddError as error:
        parser.error(str(error))
    for name, value in result.measurements.items():
        print(f"{name:40} {value}")
    for crossing in result.manifest["crossings"]:
        ends = crossing["interval"]
        between = f" (95% interval {ends[0]:.2e} to {ends[1]:.2e})" if ends else ""
        above = f"above {crossing['flops']:.2e}{between}"
        print(f"{crossing['steep']} is lower than {crossing['flat']} {above}")
    if options.out:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main()
