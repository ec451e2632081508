"""Generative perplexity against entropy of samples, over steps, temperatures, min-p, correctors.

python benchmarks/frontier.py nano --out frontier.json
python benchmarks/frontier.py models/nano --steps 16 64 256 --temperature 0.7 1.0 --out front.json
python benchmarks/frontier.py models/nano --corrector none self_correction --corrector-steps 32 128
gidd plot frontier.json

Settings marked with * are on the frontier: no other one has a lower generative perplexity at the
same or a higher entropy. With --out NAME.json the result of each setting is saved in the folder
NAME.settings, and the same command resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, Final, NamedTuple

from script import parser_of, size

import gidd
from gidd.common.config.allowed import SEED, choice, integer, problems_of, require_arguments
from gidd.common.config.registry import component_names
from gidd.errors import ConfigError, GiddError
from gidd.evaluation.graders import CausalScorer, load_grader
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.samples import NOT_SELF_SCORED, OnProgress, evaluate_model_samples
from gidd.pipeline import Pipeline, SamplingOptions

NO_CORRECTOR: Final = "none"
SELF_CORRECTION: Final = "self_correction"

_Row = Mapping[str, Any]
_MEASURED = ("gen_ppl", "entropy", "self_accuracy")
_DEFINITION = (
    "a row is on the frontier if no other row has both a lower or equal gen_ppl and a higher or "
    "equal entropy, one of them better"
)


class FrontierSetting(NamedTuple):
    """One point of a sweep."""

    steps: int
    temperature: float
    min_p: float | None
    corrector: str
    corrector_steps: int

    def options(self, base: SamplingOptions) -> SamplingOptions:
        """Return `base` with this setting."""
        steps, temperature, min_p, corrector, passes = self
        is_self = corrector == SELF_CORRECTION
        is_final = not is_self and corrector != NO_CORRECTOR
        return replace(
            base,
            steps=steps,
            temperature=temperature,
            min_p=min_p,
            final_corrector=corrector if is_final else base.final_corrector,
            final_corrector_steps=passes if is_final else 0,
            self_correction=replace(base.self_correction, forward_passes=passes)
            if is_self
            else SamplingOptions().self_correction,
        )

    def __str__(self) -> str:
        parts = [f"steps={self.steps}", f"temperature={self.temperature:g}"]
        if self.min_p is not None:
            parts.append(f"min_p={self.min_p:g}")
        if self.corrector != NO_CORRECTOR:
            parts.append(f"{self.corrector}={self.corrector_steps}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class FrontierGrid:
    """Values to combine."""

    steps: tuple[int, ...] = (16, 64)
    """Numbers of denoising steps."""
    temperature: tuple[float, ...] = (0.7, 0.9, 1.0)
    """Softmax temperatures."""
    min_p: tuple[float | None, ...] = (None,)
    """Min-p cut-offs; None keeps all tokens."""
    corrector: tuple[str, ...] = (NO_CORRECTOR,)
    """Correctors of the finished sample: none, self_correction (App. C), gibbs, gibbs_sweep."""
    corrector_steps: tuple[int, ...] = (32,)
    """Forward passes of each corrector."""

    def settings(self) -> list[FrontierSetting]:
        """Return every combination once; without a corrector, its forward passes are 0."""
        values = self.steps, self.temperature, self.min_p, self.corrector, self.corrector_steps
        swept = product(*values)
        grid = [FrontierSetting(*values) for values in swept]
        none = (s._replace(corrector_steps=0) if s.corrector == NO_CORRECTOR else s for s in grid)
        return list(dict.fromkeys(none))

    def sampling_problems(self, base: SamplingOptions) -> Iterable[str]:
        """Yield one message per invalid value, each starting with the name of its option."""
        messages = [
            f"{name} must have at least one value, got none."
            for name in FrontierSetting._fields
            if not getattr(self, name)
        ]
        for name, allowed in {
            "corrector": choice((NO_CORRECTOR, *component_names("corrector"))),
            "corrector_steps": integer(1, 1_000_000, "Use corrector none for 0."),
        }.items():
            for value in getattr(self, name):
                messages += allowed.problems(name, value)
        if set(self.corrector) == {NO_CORRECTOR} and self.corrector_steps != (32,):
            messages.append("corrector_steps needs --corrector, whose forward passes they are.")
        if not messages:
            options = (setting.options(base) for setting in self.settings())
            messages = list(dict.fromkeys(chain.from_iterable(map(problems_of, options))))
        return messages


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
        model_kind = "a model trained with masking alone, which cannot score visible tokens"
        raise ConfigError(f"corrector must be {NO_CORRECTOR} for {model_kind}.")
    shared: dict[str, Any] = {
        **pipe.describe(),
        "num_samples": num_samples,
        "length": length,
        "seed": seed,
        "grader": grader.manifest,
    }
    rows: list[dict[str, Any]] = []
    for index, setting in enumerate(settings, start=1):
        sampling = setting.options(base)
        decisive = json.dumps([shared, asdict(sampling)], sort_keys=True, default=str)
        digest = hashlib.sha256(decisive.encode()).hexdigest()[:12]
        file = folder and folder / f"{setting} {digest}.json"
        if file is not None and file.exists():
            rows.append(_row(setting, EvaluationResult.read(file)))
            continue
        label = f"{index} of {len(settings)}: {setting}"
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


def main() -> None:
    """Sweep, print and save."""
    parser = parser_of(__doc__)
    parser.add_argument("model", help="model to sample")
    parser.add_argument("--steps", type=int, nargs="+", default=size([16, 64], [1]))
    temperatures = size([0.7, 0.9, 1.0], [1.0])
    parser.add_argument("--temperature", type=float, nargs="+", default=temperatures)
    parser.add_argument("--min-p", type=_min_p, nargs="+", default=[None], help="none keeps all")
    names = f"{NO_CORRECTOR}, {', '.join(component_names('corrector'))}"
    parser.add_argument("--corrector", nargs="+", default=[NO_CORRECTOR], help=names)
    parser.add_argument("--corrector-steps", type=int, nargs="+", default=[32])
    parser.add_argument("--num-samples", type=int, default=size(64, 2), help="of each setting")
    parser.add_argument("--length", type=int, default=size(None, 8), help="tokens of a sample")
    parser.add_argument("--seed", type=int, default=0, help="the same for all settings")
    parser.add_argument("--grader", default="smollm2", help="causal language model that grades")
    parser.add_argument("--out", type=Path, help="file for the result, which `gidd plot` draws")
    options = parser.parse_args()
    fields = ("steps", "temperature", "min_p", "corrector", "corrector_steps")
    grid = FrontierGrid(**{name: tuple(getattr(options, name)) for name in fields})
    try:
        result = evaluate_frontier(
            gidd.from_pretrained(options.model),
            grid,
            grader=load_grader(options.grader),
            num_samples=options.num_samples,
            length=options.length,
            seed=options.seed,
            folder=options.out and options.out.with_name(f"{options.out.stem}.settings"),
        )
    except GiddError as error:
        parser.error(str(error))
    for row in result.rows:
        mark, values = "*" if row["on_frontier"] else " ", [row[name] for name in _MEASURED]
        shown = ["-" if value is None else f"{value:10.4g}" for value in values]
        print(f"{mark} {row['setting']:50} {' '.join(shown)}")
    if options.out:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_dict()))


def _min_p(text: str) -> float | None:
    return None if text == "none" else float(text)


if __name__ == "__main__":
    main()
