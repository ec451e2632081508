"""Compute-efficient frontiers of training runs and their power laws (App. A of the paper).

runs = [read_training_run(Path(folder)) for folder in ("runs/tiny", "runs/small", "runs/base")]
result = evaluate_scaling({"p_uniform=0.1": runs})
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gidd
from gidd.common.codec import to_plain
from gidd.errors import DataError
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.scaling.power_law import (
    Floats,
    PowerLaw,
    RunCurve,
    bootstrap_fits,
    crossing,
    fit_frontier,
    interval,
    on_frontier,
)
from gidd.evaluation.scaling.training_runs import ScalingPoint, TrainingRun, read_training_run

_BAND_POINTS = 33
"""FLOPs at which the interval of a fit is saved, for plots."""

_DEFINITIONS = {
    "flops": "Hoffmann et al. (2022), App. F: forward pass times 3, embeddings included; "
    "the time conditioning of a DiT is included, causal attention is counted in full",
    "frontier": "points without another of the series with at most as many FLOPs and at most "
    "as high a NELBO",
    "fit": "log NELBO = log coefficient + exponent * log FLOPs, least squares on the frontier",
    "interval": "95% percentile interval of a bootstrap that resamples runs, not points",
}


class _Fit(NamedTuple):
    """A series with its fit; None if its points do not allow one."""

    runs: Sequence[TrainingRun]
    points: Sequence[ScalingPoint]
    law: PowerLaw | None
    resampled: Sequence[PowerLaw]

    @property
    def flops(self) -> Floats:
        return np.array([point.flops for point in self.points])

    @property
    def nelbo(self) -> Floats:
        return np.array([point.nelbo for point in self.points])


def read_series(
    folders: Sequence[Path], group_by: str, named: Mapping[str, Sequence[Path]]
) -> dict[str, list[TrainingRun]]:
    """Read runs and group them by a setting, or as the names of `named` say."""
    series = {name: [read_training_run(run) for run in runs] for name, runs in named.items()}
    for folder in folders:
        run = read_training_run(folder)
        series.setdefault(run.label(group_by), []).append(run)
    return dict(sorted(series.items()))


def evaluate_scaling(
    series: Mapping[str, Sequence[TrainingRun]],
    *,
    min_flops: float = 0.0,
    last_only: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
) -> EvaluationResult:
    """Fit a power law to the frontier of every series.

    Args:
        series: Runs by the name of their series.
        min_flops: Leave out points with fewer FLOPs: early training follows no power law.
        last_only: Use the last validation of every run only: at the others, the learning rate has
            not decayed yet.
        bootstrap: Number of resamples of the runs of a series.
        seed: Of the resamples.
    """
    _require_same_tokenizer([run for runs in series.values() for run in runs])
    fits = {
        name: _fit(name, runs, min_flops, last_only, bootstrap, seed + number)
        for number, (name, runs) in enumerate(series.items())
    }
    if all(fit.law is None for fit in fits.values()):
        raise DataError(
            "no series has two points with different FLOPs on its frontier, which a fit needs. Add "
            "runs of other sizes or lengths, or validate more often (--train.evaluate-every)."
        )
    crossings = [_describe_crossing(*pair) for pair in _crossing_pairs(fits)]
    return EvaluationResult(
        kind="scaling",
        measurements={
            **{key: value for name, fit in fits.items() for key, value in _measure(name, fit)},
            **{
                f"crossing_{entry['steep']}_{entry['flat']}": Measurement(entry["flops"])
                for entry in crossings
                if not math.isnan(entry["flops"])
            },
        },
        manifest={
            "gidd": gidd.__version__,
            "definitions": _DEFINITIONS,
            "min_flops": min_flops,
            "points": "last" if last_only else "all",
            "bootstrap": bootstrap,
            "seed": seed,
            "runs": {
                str(run.folder): {"run": to_plain(run.config), "tokenizer": run.tokenizer}
                for fit in fits.values()
                for run in fit.runs
            },
            "fits": {name: _describe_fit(fit) for name, fit in fits.items()},
            "crossings": crossings,
            "notes": [note for name, fit in fits.items() for note in _notes(name, fit)],
        },
        rows=[row for name, fit in fits.items() for row in _rows(name, fit)],
    )


def _fit(
    name: str,
    runs: Sequence[TrainingRun],
    min_flops: float,
    last_only: bool,
    bootstrap: int,
    seed: int,
) -> _Fit:
    kept = [[p for p in run.points if p.flops >= min_flops] for run in runs]
    kept = [points[-1:] if last_only else points for points in kept if points]
    if not kept:
        raise DataError(
            f"the series {name} has no point with at least {min_flops:.3g} FLOPs. Lower the limit "
            "or add longer runs."
        )
    curves = [
        RunCurve(np.array([p.flops for p in points]), np.array([p.nelbo for p in points]))
        for points in kept
    ]
    points = [point for points in kept for point in points]
    return _Fit(runs, points, fit_frontier(curves), bootstrap_fits(curves, bootstrap, seed))


def _measure(name: str, fit: _Fit) -> Iterator[tuple[str, Measurement]]:
    if fit.law is None:
        return
    exponents = [law.exponent for law in fit.resampled]
    error = statistics.stdev(exponents) if len(exponents) > 1 else None
    yield f"exponent_{name}", Measurement(fit.law.exponent, error, len(fit.runs))
    coefficient = math.exp(min(fit.law.log_coefficient, 700.0))
    yield f"coefficient_{name}", Measurement(coefficient, None, len(fit.runs))


def _rows(name: str, fit: _Fit) -> Iterator[dict[str, Any]]:
    frontier = on_frontier(fit.flops, fit.nelbo)
    for point, is_optimal in zip(fit.points, frontier.tolist(), strict=True):
        yield {"series": name, **point._asdict(), "on_frontier": is_optimal}


def _describe_fit(fit: _Fit) -> dict[str, Any] | None:
    """Return the fit as plain data, with the interval of its NELBO over the observed FLOPs."""
    if fit.law is None:
        return None
    flops = np.geomspace(fit.flops.min(), fit.flops.max(), _BAND_POINTS)
    bands = np.array([law.nelbo(flops) for law in fit.resampled]).reshape(-1, _BAND_POINTS)
    intervals = [interval(column.tolist()) for column in bands.T]
    return {
        "num_runs": len(fit.runs),
        **fit.law._asdict(),
        "exponent_interval": interval([law.exponent for law in fit.resampled]),
        "num_resamples": len(fit.resampled),
        "band": [
            {"flops": at, "low": found.low, "high": found.high}
            for at, found in zip(flops.tolist(), intervals, strict=True)
            if found is not None
        ],
    }


def _crossing_pairs(
    fits: Mapping[str, _Fit],
) -> Iterator[tuple[tuple[str, _Fit, PowerLaw], tuple[str, _Fit, PowerLaw]]]:
    """Yield the pairs of series whose exponents differ, the steeper one first."""
    fitted = [(name, fit, fit.law) for name, fit in fits.items() if fit.law is not None]
    for pair in combinations(fitted, 2):
        steep, flat = sorted(pair, key=lambda item: item[2].exponent)
        if flat[2].exponent - steep[2].exponent > 1e-9:
            yield steep, flat


def _describe_crossing(
    steep: tuple[str, _Fit, PowerLaw], flat: tuple[str, _Fit, PowerLaw]
) -> dict[str, Any]:
    """Return where the steeper fit becomes the lower one; NaN if it is lower everywhere."""
    resampled = list(zip(steep[1].resampled, flat[1].resampled, strict=False))
    found = crossing(steep[2], flat[2], resampled)
    entry: dict[str, Any] = {"steep": steep[0], "flat": flat[0]}
    observed = [*steep[1].flops, *flat[1].flops]
    if found.flops < min(observed):
        text = (
            f"{steep[0]} and {flat[0]} do not cross: {steep[0]} is lower at all FLOPs of the runs "
            "and has the steeper fit"
        )
        return entry | {"flops": math.nan, "interval": None, "text": text}
    where = "extrapolated" if found.flops > max(observed) else "within the runs"
    between = "no interval, since a series has one run"
    if found.interval is not None:
        low, high = (_show_flops(end) for end in found.interval)
        between = f"95% interval {low} to {high}"
    text = f"{steep[0]} is lower than {flat[0]} above {_show_flops(found.flops)} FLOPs"
    text += f" ({where}; {between})"
    return entry | {"flops": found.flops, "interval": found.interval, "text": text}


def _show_flops(flops: float) -> str:
    return f"{flops:.2e}".replace("e+", "e") if math.isfinite(flops) else "never"


def _notes(name: str, fit: _Fit) -> Iterator[str]:
    """Yield what is missing."""
    if fit.law is None:
        yield (
            f"{name}: no fit, since all points on its frontier have the same FLOPs. Add runs of "
            "other sizes or lengths."
        )
    elif len(fit.runs) < 2:
        yield f"{name}: no intervals, since it has one run. Add runs to resample."
    elif len(fit.runs) < 5:
        yield (
            f"{name}: intervals of {len(fit.runs)} runs are rough, since there are few resamples."
        )


def _require_same_tokenizer(runs: Sequence[TrainingRun]) -> None:
    first = runs[0]
    for run in runs:
        if run.tokenizer != first.tokenizer:
            raise DataError(
                f"{first.folder} and {run.folder} have different tokenizers, so their nats per "
                "token cannot be compared. Give runs with the same tokenizer."
            )
