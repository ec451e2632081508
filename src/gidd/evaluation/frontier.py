"""Quality against diversity of samples over steps, temperatures, min-p and correctors.

evaluate_frontier(pipe, FrontierGrid(steps=(16, 64)), grader=grader, folder=Path("frontier"))
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gidd.common.config.allowed import SEED, integer, require_arguments
from gidd.errors import ConfigError
from gidd.evaluation.graders import CausalScorer
from gidd.evaluation.options import NO_CORRECTOR, FrontierGrid, FrontierSetting
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples import NOT_SELF_SCORED, OnProgress, evaluate_model_samples
from gidd.pipeline import Pipeline, SamplingOptions

_Row = Mapping[str, Any]
_MEASURED = ("gen_ppl", "entropy", "self_accuracy")
_DEFINITION = (
    "a row is on the frontier if no other row has both a lower or equal gen_ppl and a higher or "
    "equal entropy, one of them better"
)


def evaluate_frontier(
    pipe: Pipeline,
    grid: FrontierGrid,
    *,
    grader: CausalScorer,
    num_samples: int = 64,
    length: int | None = None,
    seed: int = 0,
    options: SamplingOptions | None = None,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
) -> EvaluationResult:
    """Measure samples of every setting, and mark those that no other setting improves on.

    All settings use the same seeds. `options` are the sampling options that are not in the grid.
    Results are saved in `folder`; a setting whose file exists is not measured again.
    """
    require_arguments(num_samples=(num_samples, integer(1)), seed=(seed, SEED))
    base = options or SamplingOptions()
    if problems := list(grid.sampling_problems(base)):
        raise ConfigError("\n".join(problems))
    settings = grid.settings()
    if not pipe.can_score_visible_tokens and any(s.corrector != NO_CORRECTOR for s in settings):
        what = "a model trained with masking alone, which cannot score visible tokens"
        raise ConfigError(f"corrector must be {NO_CORRECTOR} for {what}.")
    shared: dict[str, Any] = {
        **pipe.describe(),
        "num_samples": num_samples,
        "length": length,
        "seed": seed,
        "grader": grader.manifest,
    }
    rows: list[dict[str, Any]] = []
    for number, setting in enumerate(settings, start=1):
        sampling = setting.options(base)
        decisive = json.dumps([shared, asdict(sampling)], sort_keys=True, default=str)
        digest = hashlib.sha256(decisive.encode()).hexdigest()[:12]
        file = folder and folder / f"{setting} {digest}.json"
        if file is not None and file.exists():
            rows.append(_row(setting, EvaluationResult.read(file)))
            continue
        label = f"{number} of {len(settings)}: {setting}"
        result = evaluate_model_samples(
            pipe,
            num_samples,
            length=length,
            seed=seed,
            grader=grader,
            options=sampling,
            on_progress=on_progress and _labelled(on_progress, label),
        )
        if file is not None:
            result.save(file)
        rows.append(_row(setting, result))
    if not pipe.can_score_visible_tokens:
        shared["notes"] = [*shared["notes"], NOT_SELF_SCORED]
    fixed = {k: v for k, v in asdict(base).items() if k not in FrontierSetting._fields}
    return EvaluationResult(
        kind="frontier",
        measurements={
            f"{name} {row['setting']}": Measurement(row[name], row[f"{name}_se"], num_samples)
            for row in rows
            for name in _MEASURED
            if row[name] is not None
        },
        manifest=shared | {"sampling": fixed, "frontier": _DEFINITION},
        rows=mark_frontier(rows),
    )


def mark_frontier(rows: Sequence[_Row]) -> list[dict[str, Any]]:
    """Return the rows with `on_frontier`: no other row is better in quality and diversity."""

    def is_on_frontier(row: _Row) -> bool:
        point = row["gen_ppl"], row["entropy"]
        return None not in point and not any(
            other[0] <= point[0] and other[1] >= point[1] and other != point for other in points
        )

    points = [(row["gen_ppl"], row["entropy"]) for row in rows]
    points = [point for point in points if None not in point]
    return [{**row, "on_frontier": is_on_frontier(row)} for row in rows]


def _labelled(on_progress: OnProgress, label: str) -> OnProgress:
    return lambda action, done, total: on_progress(f"{label}, {action}", done, total)


def _row(setting: FrontierSetting, result: EvaluationResult) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": str(setting), **setting._asdict()}
    for name in _MEASURED:
        value, error, _ = result.measurements.get(name) or Measurement(math.nan)
        row |= {name: value if math.isfinite(value) else None, f"{name}_se": error}
    for name in ("nfe", "unscored"):
        row[name] = result.measurements[name].value
    return row | {name: result.manifest[name] for name in ("num_samples", "texts_sha256")}
