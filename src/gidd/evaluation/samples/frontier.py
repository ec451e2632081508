"""Quality against diversity of samples over steps, temperatures, min-p and correctors.

Generative perplexity alone rewards samples that repeat themselves (App. G): a setting is better
only if it has a lower perplexity at the same or a higher entropy.

evaluate_frontier(pipe, FrontierGrid(steps=(16, 64)), grader=grader, out=Path("frontier.json"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gidd.common.allowed import SEED, integer, require_arguments
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples.frontier_settings import NO_CORRECTOR, FrontierGrid, FrontierSetting
from gidd.evaluation.samples.grader import Grader
from gidd.evaluation.samples.sample_generation import NOT_SELF_SCORED, OnProgress
from gidd.evaluation.samples.samples import evaluate_model_samples
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
    grader: Grader,
    num_samples: int = 64,
    length: int | None = None,
    seed: int = 0,
    options: SamplingOptions | None = None,
    out: Path | None = None,
    on_setting: Callable[[FrontierSetting, int, int], OnProgress | None] | None = None,
) -> EvaluationResult:
    """Measure samples of every setting, and mark those that no other setting improves on.

    Args:
        pipe: The model.
        grid: The settings to combine.
        grader: Model for generative perplexity.
        num_samples: Samples of each setting; all settings use the same seeds.
        length: Tokens of a sample; by default the context of the model, but at most 2,048.
        seed: Random seed of the samples.
        options: Options of the sampler that are not in the grid.
        out: File that holds the result after every setting. Settings that it already has are not
            measured again; it is refused if anything else than the grid differs.
        on_setting: Called before each setting that is measured, with its index and the number of
            settings; returns a callback for its progress.
    """
    require_arguments(num_samples=(num_samples, integer(1)), seed=(seed, SEED))
    base = options or SamplingOptions()
    if problems := list(grid.problems(base)):
        raise ConfigError("\n".join(problems))
    settings = grid.settings()
    _require_correctable(pipe, settings)
    manifest = _manifest(pipe, grader, base, num_samples, length, seed)
    rows = [] if out is None or not out.exists() else _finished_rows(out, manifest)
    finished = {FrontierSetting.of_row(row) for row in rows}
    for number, setting in enumerate(settings):
        if setting in finished:
            continue
        result = evaluate_model_samples(
            pipe,
            num_samples,
            length=length,
            seed=seed,
            grader=grader,
            options=setting.options(base),
            on_progress=on_setting and on_setting(setting, number, len(settings)),
        )
        rows = [*rows, _row(setting, result)]
        if out is not None:
            _result(rows, manifest).save(out)
    return _result(rows, manifest)


def mark_frontier(rows: Sequence[_Row]) -> list[dict[str, Any]]:
    """Return the rows with `on_frontier`: no other row is better in quality and diversity."""
    points = [(row["gen_ppl"], row["entropy"]) for row in rows]
    return [
        {**row, "on_frontier": _is_number(*point) and not any(_beats(p, point) for p in points)}
        for row, point in zip(rows, points, strict=True)
    ]


def _beats(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if not _is_number(*one):
        return False
    return one[0] <= other[0] and one[1] >= other[1] and one != other


def _is_number(*values: float | None) -> bool:
    return all(value is not None and math.isfinite(value) for value in values)


def _row(setting: FrontierSetting, result: EvaluationResult) -> dict[str, Any]:
    row: dict[str, Any] = setting._asdict()
    for name in _MEASURED:
        found = result.measurements.get(name)
        row |= {name: found and _finite(found.value), f"{name}_se": found and found.standard_error}
    row["nfe"] = result.measurements["nfe"].value
    row["num_samples"] = result.manifest["num_samples"]
    row["unscored"] = result.measurements["unscored"].value
    row["texts_sha256"] = result.manifest["texts_sha256"]
    return row


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _result(rows: Sequence[_Row], manifest: dict[str, Any]) -> EvaluationResult:
    measurements: dict[str, Measurement] = {}
    for row in rows:
        label = str(FrontierSetting.of_row(row))
        for name in _MEASURED:
            if row[name] is not None:
                value, error = row[name], row[f"{name}_se"]
                measurements[f"{name} {label}"] = Measurement(value, error, row["num_samples"])
    return EvaluationResult(
        kind="frontier", measurements=measurements, manifest=manifest, rows=mark_frontier(rows)
    )


def _manifest(
    pipe: Pipeline,
    grader: Grader,
    base: SamplingOptions,
    num_samples: int,
    length: int | None,
    seed: int,
) -> dict[str, Any]:
    """Return what all settings share; plain data, equal to itself after a round trip by JSON."""
    swept = {*FrontierSetting._fields}
    fixed = {f.name: getattr(base, f.name) for f in fields(base) if f.name not in swept}
    correction = base.correction
    fixed["correction"] = {
        f.name: getattr(correction, f.name) for f in fields(correction) if f.name != "calls"
    }
    for name in ("sampler_options", "corrector_options"):
        fixed[name] = {key: str(value) for key, value in fixed[name].items()}
    described = describe_pipeline(pipe)
    if not pipe.can_score_visible_tokens:
        described["notes"] = [*described["notes"], NOT_SELF_SCORED]
    manifest = {
        **described,
        "num_samples": num_samples,
        "length": length,
        "seed": seed,
        "sampling": fixed,
        "grader": grader.manifest,
        "frontier": _DEFINITION,
    }
    empty = EvaluationResult(kind="frontier", measurements={}, manifest=manifest)
    return empty.to_dict()["manifest"]


def _require_correctable(pipe: Pipeline, settings: Sequence[FrontierSetting]) -> None:
    if not pipe.can_score_visible_tokens and any(s.corrector != NO_CORRECTOR for s in settings):
        raise ConfigError(
            f"corrector must be {NO_CORRECTOR} for a model trained with masking alone, which "
            "cannot score visible tokens."
        )


def _finished_rows(path: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run with the same manifest."""
    before = EvaluationResult.read(path)
    remedy = "Name another file with --out, or delete this one."
    if before.kind != "frontier":
        raise DataError(f"{path} is a result of `gidd eval {before.kind}`. {remedy}")
    old, new = _flat(before.manifest), _flat(manifest)
    different = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    if different:
        shown = ", ".join(
            f"{key} ({shorten(old.get(key))}, now {shorten(new.get(key))})" for key in different[:5]
        )
        raise DataError(
            f"{path} was measured with other settings and cannot be continued: {shown}. {remedy}"
        )
    rows = [{k: v for k, v in row.items() if k != "on_frontier"} for row in before.rows]
    if not all(_is_complete(row) for row in rows):
        raise DataError(f"{path} has a row that this command did not write. {remedy}")
    return rows


def _is_complete(row: _Row) -> bool:
    """Whether a row of a file has every entry with a value of its type."""
    numbers = ("min_p", *_MEASURED, *(f"{name}_se" for name in _MEASURED))
    required = ("steps", "temperature", "corrector_calls", "nfe", "num_samples")
    return (
        isinstance(row.get("corrector"), str)
        and all(type(row.get(name)) in (int, float) for name in required)
        and all(name in row and type(row[name]) in (int, float, type(None)) for name in numbers)
    )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, with keys such as `grader.sha256`."""
    if not isinstance(value, Mapping) or not value:
        return {name: value}
    found: dict[str, Any] = {}
    for key, entry in value.items():  # pyright: ignore[reportUnknownVariableType]
        found |= _flat(entry, f"{name}.{key}" if name else str(key))  # pyright: ignore[reportUnknownArgumentType]
    return found
