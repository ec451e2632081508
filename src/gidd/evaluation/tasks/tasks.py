"""Accuracy on tasks of lm-evaluation-harness, with a row per question.

result = evaluate_tasks(gidd.from_pretrained("models/nano"), ["arc_easy", "my_task.jsonl"])
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from gidd.common.optional import optional_package
from gidd.errors import ConfigError, DataError, GiddError
from gidd.evaluation.model_manifest import describe_pipeline
from gidd.evaluation.ratios import ratio_of_sums
from gidd.evaluation.results import EvaluationResult, Measurement
from gidd.evaluation.tasks.choices import ChoiceScores, OnPasses
from gidd.evaluation.tasks.task_files import is_task_file, read_tasks, require_own_metrics
from gidd.evaluation.tasks.task_names import PAPER_TASKS, resolve_names
from gidd.evaluation.tasks.task_settings import TaskSettings
from gidd.pipeline import Pipeline

FEWSHOT_SEED = 1234
"""As in lm_eval."""

_SETTINGS = TaskSettings()


def evaluate_tasks(
    pipe: Pipeline,
    names: Sequence[str],
    settings: TaskSettings = _SETTINGS,
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    on_passes: OnPasses | None = None,
) -> EvaluationResult:
    """Evaluate a model on tasks of lm_eval and of local files, in one process.

    Args:
        pipe: The model.
        names: Tasks of lm_eval, "paper" for those of the paper, `.yaml` and `.jsonl` files, and
            folders of them.
        settings: How continuations are scored.
        limit: Number of questions of each task; by default all.
        num_fewshot: Number of examples before each question; by default that of the task.
        on_passes: Called with the forward passes done and expected.
    """
    from gidd.evaluation.tasks.harness import GiddLM  # imports lm_eval, which takes seconds

    with _quiet():
        tasks = _load(names)
        for task in tasks.values():
            _set_fewshot(task, num_fewshot)
        model = GiddLM(
            pipe,
            on_passes=on_passes,
            **{name: getattr(settings, name) for name in TaskSettings.__dataclass_fields__},
        )
        evaluate = optional_package("lm_eval.evaluator", "eval").evaluate
        found = evaluate(model, {"tasks": tasks}, limit=limit, bootstrap_iters=0)
    manifest = {
        **describe_pipeline(pipe),
        **model.describe(),
        "lm_eval": str(optional_package("lm_eval", "eval").__version__),
        "tasks": {name: _describe(task, found) for name, task in tasks.items()},
        "limit": limit,
        "calls": model.calls,
        "truncated_requests": model.truncated,
    }
    samples = cast("dict[str, list[dict[str, Any]]]", found["samples"])
    measurements, rows = dict[str, Measurement](), list[dict[str, Any]]()
    for name in tasks:
        measurements |= _measurements(name, found["results"][name], samples[name])
        scores = {key.document: each for key, each in model.scores.items() if key.task == name}
        rows += _rows(name, samples[name], scores)
    return EvaluationResult(kind="tasks", measurements=measurements, manifest=manifest, rows=rows)


@contextmanager
def _quiet() -> Generator[None]:
    """Show only errors of lm_eval; what it logs as warnings are its own defaults."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _load(names: Sequence[str]) -> dict[str, Any]:
    """Return the tasks by name."""
    specs: list[tuple[str, Any]] = []
    for name in resolve_names(names):
        if is_task_file(name):
            specs += [(task["task"], task) for task in read_tasks(Path(name))]
        else:
            specs.append((name, name))
    manager = _task_manager([spec for _, spec in specs if isinstance(spec, str)])
    loaded: dict[str, Any] = {}
    for name, spec in specs:
        found = _load_task(manager, name, spec)
        if twice := loaded.keys() & found.keys():
            raise ConfigError(f"tasks must have different names, got {min(twice)} twice.")
        loaded |= found
    return loaded


def _task_manager(names: Sequence[str]) -> Any:
    """Return lm_eval's index of tasks: of its 14,000 files only if a task is not of the paper."""
    module: Any = optional_package("lm_eval.tasks", "eval")
    root = Path(module.__file__).parent
    own = [root / PAPER_TASKS[name] for name in names if name in PAPER_TASKS]
    needs_all = len(own) < len(names) or not all(folder.is_dir() for folder in own)
    manager = module.TaskManager(
        include_path=None if needs_all else own, include_defaults=needs_all
    )
    if unknown := [name for name in names if name not in manager.task_index]:
        raise ConfigError(
            f"TASK must be a task of lm_eval, paper, or a .yaml or .jsonl file, got "
            f"{unknown[0]!r}. `lm_eval ls tasks` lists its tasks."
        )
    for name in names:
        config = manager.task_index[name].cfg or {}
        require_own_metrics(f"the task {name}", config.get("metric_list") or [])
    return manager


def _load_task(manager: Any, name: str, spec: Any) -> dict[str, Any]:
    """Return a task, or those of a group; a data set that cannot be loaded is an error."""
    try:
        return dict(manager.load(spec)["tasks"])
    except (GiddError, KeyboardInterrupt):
        raise
    except Exception as error:  # of datasets, huggingface_hub, httpx, ...
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"the data of the task {name} could not be loaded: {type(error).__name__}: {reason} "
            "Check the network and HF_HUB_OFFLINE. On a machine without network, run once where "
            "there is one and copy the cache (HF_HOME), or name a local .jsonl or .yaml file."
        ) from error


def _set_fewshot(task: Any, number: int | None) -> None:
    """Set the number of examples as lm_eval does: tasks that fix it at 0 keep it."""
    default = task.get_config("num_fewshot")
    if default is None or (number is not None and default != 0):
        task.set_config(key="num_fewshot", value=number or 0)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)


def _describe(task: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a task: version, data, number of examples, hash of its questions."""
    name = task.task_name
    parts = ("doc_hash", "prompt_hash", "target_hash")
    hashes = [[sample[part] for part in parts] for sample in found["samples"][name]]
    config = task.config
    metadata: dict[str, Any] = config.metadata if isinstance(config.metadata, dict) else {}
    return {
        "version": found["versions"].get(name),
        "output_type": config.output_type,
        "dataset": [config.dataset_path, config.dataset_name],
        "file": metadata.get("file"),
        "num_fewshot": config.num_fewshot,
        "fewshot_seed": FEWSHOT_SEED,
        "num_questions": len({sample["doc_id"] for sample in found["samples"][name]}),
        "questions_sha256": hashlib.sha256(json.dumps(hashes).encode()).hexdigest(),
    }


def _measurements(
    task: str, results: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> dict[str, Measurement]:
    """Return the metrics of a task with standard errors over its questions, by `METRIC_TASK`."""
    found: dict[str, Measurement] = {}
    for key, value in results.items():
        metric, comma, filtered = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        values = [sample[metric] for sample in samples if sample["filter"] == filtered]
        error = _standard_error(metric, float(value), values)
        found[_column(metric, filtered, task)] = Measurement(float(value), error, len(values))
    return found


def _standard_error(metric: str, value: float, values: Sequence[Any]) -> float | None:
    """Return that of a mean (as lm_eval's) or of a ratio of sums; None for other metrics."""
    if all(isinstance(each, int | float) for each in values):
        mean = Measurement.mean(values)
        return mean.standard_error if math.isclose(mean.value, value, abs_tol=1e-9) else None
    if not all(isinstance(each, tuple) and len(cast("Any", each)) == 2 for each in values):
        return None
    unit = math.log(2) if metric == "bits_per_byte" else 1.0
    above, below = ([pair[i] for pair in values] for i in (0, 1))
    nats = [-loglikelihood / unit for loglikelihood in above]
    found = ratio_of_sums(nats, below, exponential=metric.endswith("perplexity"))
    return found.standard_error if math.isclose(found.value, value) else None


def _column(metric: str, filtered: str, task: str) -> str:
    return f"{metric}_{task}" if filtered == "none" else f"{metric}_{filtered}_{task}"


def _rows(
    task: str,
    samples: Sequence[Mapping[str, Any]],
    scores: Mapping[int | None, ChoiceScores],
) -> list[dict[str, Any]]:
    """Return a row per question; the columns of its metrics are named like the measurements."""
    rows: dict[int, dict[str, Any]] = {}
    for sample in samples:
        number = sample["doc_id"]
        row = rows.setdefault(number, {"id": f"{task}/{number}", "task": task})
        row["answer"] = sample["target"]
        for metric in sample["metrics"]:
            if isinstance(sample[metric], int | float):
                row[_column(metric, sample["filter"], task)] = float(sample[metric])
        if number in scores:
            row |= _scored(scores[number])
        else:
            row["output"] = sample["filtered_resps"][0]
    return list(rows.values())


def _scored(scores: ChoiceScores) -> dict[str, Any]:
    values = scores.loglikelihood
    return {
        "choice": max(range(len(values)), key=values.__getitem__),
        "loglikelihood": list(values),
        "standard_error": list(scores.standard_error),
        "repeats": scores.repeats,
        "is_decided": scores.is_decided,
        "calls": scores.calls,
    }
