"""Accuracy on tasks of lm-evaluation-harness and on local questions, with a row per question.

result = evaluate_tasks(gidd.from_pretrained("models/nano"), ["arc_easy", "questions.jsonl"])

A line of a .jsonl file is a question: {"question": ..., "choices": [...], "answer": 0}.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError, GiddError
from gidd.evaluation.harness.choices import ChoiceScores, OnPasses
from gidd.evaluation.options import TaskOptions
from gidd.evaluation.results import EvaluationResult, Measurement, ratio_of_sums
from gidd.evaluation.sample_files import json_objects
from gidd.pipeline import Pipeline

PAPER_TASKS = {  # tasks of the paper (Tab. on zero-shot accuracy): their folders in lm_eval
    "arc_easy": "arc",
    "arc_challenge": "arc",
    "boolq": "super_glue/boolq",
    "hellaswag": "hellaswag",
    "piqa": "piqa",
    "openbookqa": "openbookqa",
    "winogrande": "winogrande",
}
_ALIASES = {"arc-e": "arc_easy", "arc-c": "arc_challenge", "obqa": "openbookqa"}
_FEWSHOT_SEED = 1234  # as in lm_eval
_OPTIONS = TaskOptions()


def evaluate_tasks(
    pipe: Pipeline,
    names: Sequence[str],
    options: TaskOptions = _OPTIONS,
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    on_passes: OnPasses | None = None,
) -> EvaluationResult:
    """Evaluate a model on tasks of lm_eval and of local files, in one process.

    `names` are tasks of lm_eval, "paper" for the seven tasks of the paper, `.yaml` and `.jsonl`
    files, and folders of them. `limit` is the number of questions of each task, `num_fewshot` of
    examples before each question. `on_passes` is called with the forward passes done and expected.
    """
    lm_eval: Any = optional_package("lm_eval.evaluator", "eval")
    from gidd.evaluation.harness.lm import GiddLM  # imports lm_eval, which takes seconds

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of its own defaults
    loaded = _load(resolve_names(names))
    for task in loaded["tasks"].values():  # as `simple_evaluate` does
        default = task.get_config("num_fewshot")
        if default is None or (num_fewshot is not None and default != 0):
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
        task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    model = GiddLM(pipe, on_passes=on_passes, **asdict(options))
    # `simple_evaluate` also runs pip and lscpu, to describe the machine
    output = lm_eval.evaluate(model, loaded, limit=limit, bootstrap_iters=0)
    samples = cast("dict[str, list[dict[str, Any]]]", output["samples"])
    measurements, rows = dict[str, Measurement](), list[dict[str, Any]]()
    for name in loaded["tasks"]:
        measurements |= _measurements(name, output["results"][name], samples[name])
        scores = {key[1]: score for key, score in model.scores.items() if key[0] == name}
        rows += _rows(name, samples[name], scores)
    manifest = {
        **pipe.describe(),
        **model.describe(),
        "lm_eval": str(optional_package("lm_eval", "eval").__version__),
        "tasks": {n: _describe(task, output) for n, task in loaded["tasks"].items()},
        "limit": limit,
        "forward_passes": model.forward_passes,
        "truncated_requests": model.truncated,
    }
    return EvaluationResult(kind="tasks", measurements=measurements, manifest=manifest, rows=rows)


def resolve_names(names: Sequence[str]) -> list[str]:
    """Return tasks and files without repetition: names of the paper as lm_eval spells them."""
    resolved: list[str] = []
    for name in names:
        key, path = name.lower(), Path(name)
        if key == "paper":
            resolved += PAPER_TASKS
        elif key in _ALIASES or key in PAPER_TASKS:
            resolved.append(_ALIASES.get(key, key))
        elif path.is_dir():
            files = sorted(path.glob("*.yaml")) or sorted(path.glob("*.jsonl"))
            if not files:
                raise DataError(f"{path} has no .yaml or .jsonl file. Name a folder with tasks.")
            resolved += map(str, files)
        else:
            resolved.append(name)
    return list(dict.fromkeys(resolved))


def read_questions(path: Path) -> dict[str, Any]:
    """Return the configuration of a multiple-choice task: the questions of a JSONL file."""
    fix = "Write one JSON object per line."
    rows = [_question(row, where) for row, where in json_objects(path, fix)]
    if not rows:
        raise DataError(f"{path} has no questions. {fix}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def load(**_: Any) -> dict[str, Any]:
        return {"test": optional_package("datasets", "eval").Dataset.from_list(rows)}

    return {
        "task": path.stem,
        "custom_dataset": load,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True}
            for name in ("acc", "acc_norm")
        ],
        "metadata": {"version": 1.0, "file": {"name": path.name, "sha256": digest}},
    }


def _question(record: dict[str, Any], where: str) -> dict[str, Any]:
    text: Any = record.get("question", record.get("context"))
    choices, answer = cast("list[Any]", record.get("choices")), record.get("answer")
    if not isinstance(text, str):
        raise DataError(f'{where} must have a text "question" or "context", got {shorten(text)}.')
    are_texts = type(choices) is list and all(isinstance(c, str) and c for c in choices)
    if not are_texts or len(choices) < 2:
        raise DataError(f'{where} must have "choices", 2 or more texts, got {shorten(choices)}.')
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise DataError(f'{where}: "answer" must be in [0, {len(choices)}), got {shorten(answer)}.')
    return {"question": text, "choices": choices, "answer": answer}


def _load(names: Sequence[str]) -> dict[str, Any]:
    """Return lm_eval's tasks and groups; all its tasks are indexed only if one is needed."""
    module: Any = optional_package("lm_eval.tasks", "eval")
    files = [name for name in names if Path(name).suffix in (".yaml", ".yml", ".jsonl")]
    if absent := [name for name in files if not Path(name).is_file()]:
        raise DataError(f"{absent[0]} is not a file. Name a .yaml or .jsonl file, or a folder.")
    paper = [Path(module.__file__).parent / PAPER_TASKS[n] for n in names if n in PAPER_TASKS]
    needs_all = len(paper) + len(files) < len(names) or not all(map(Path.is_dir, paper))
    folders = None if needs_all else paper
    manager = module.TaskManager(include_path=folders, include_defaults=needs_all)
    for name in names:
        if name not in files and name not in manager.task_index:
            allowed = "a task of lm_eval (`lm_eval ls tasks`), paper, or a .yaml or .jsonl file"
            raise ConfigError(f"TASK must be {allowed}, got {name!r}.")
    specs = [read_questions(Path(n)) if n.endswith(".jsonl") else n for n in names]
    try:
        return manager.load(specs)
    except (GiddError, KeyboardInterrupt):
        raise
    except Exception as error:  # of datasets, huggingface_hub, httpx, ...
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"the tasks {', '.join(names)} could not be loaded: {type(error).__name__}: {reason} "
            "Check the network and HF_HUB_OFFLINE, copy the cache (HF_HOME) of a machine with "
            "network, or name a local .jsonl or .yaml file."
        ) from error


def _describe(task: Any, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a task: version, data, number of examples, hash of its questions."""
    name, config = task.task_name, task.config
    parts = ("doc_hash", "prompt_hash", "target_hash")
    hashes = [[sample[part] for part in parts] for sample in output["samples"][name]]
    metadata: dict[str, Any] = config.metadata if isinstance(config.metadata, dict) else {}
    return {
        "version": output["versions"].get(name),
        "output_type": config.output_type,
        "dataset": [config.dataset_path, config.dataset_name],
        "file": metadata.get("file"),
        "num_fewshot": config.num_fewshot,
        "fewshot_seed": _FEWSHOT_SEED,
        "num_questions": len({sample["doc_id"] for sample in output["samples"][name]}),
        "questions_sha256": hashlib.sha256(json.dumps(hashes).encode()).hexdigest(),
    }


def _measurements(
    task: str, results: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> dict[str, Measurement]:
    """Return the metrics of a task with standard errors over its questions, by `METRIC_TASK`."""
    measurements: dict[str, Measurement] = {}
    for key, value in results.items():
        metric, comma, filtered = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        values = [sample[metric] for sample in samples if sample["filter"] == filtered]
        error = _standard_error(float(value), values)
        measurement = Measurement(float(value), error, len(values))
        measurements[_column(metric, filtered, task)] = measurement
    return measurements


def _standard_error(value: float, values: Sequence[Any]) -> float | None:
    """Return the error of a mean, of nats per unit in bits, or of a perplexity; otherwise None."""
    if all(isinstance(v, int | float) for v in values):
        mean = Measurement.mean(values)
        return mean.standard_error if math.isclose(mean.value, value, abs_tol=1e-9) else None
    if not all(isinstance(v, tuple) and len(cast("Any", v)) == 2 for v in values):
        return None
    units = [v[1] for v in values]
    bits = ratio_of_sums([-v[0] / math.log(2) for v in values], units)
    perplexity = ratio_of_sums([-v[0] for v in values], units, exponential=True)
    matches = [ratio for ratio in (bits, perplexity) if math.isclose(ratio.value, value)]
    return matches[0].standard_error if matches else None


def _column(metric: str, filtered: str, task: str) -> str:
    return f"{metric}_{task}" if filtered == "none" else f"{metric}_{filtered}_{task}"


def _rows(
    task: str, samples: Sequence[Mapping[str, Any]], scores: Mapping[int | None, ChoiceScores]
) -> list[dict[str, Any]]:
    """Return a row per question; the columns of its metrics are named like the measurements."""
    rows: dict[int, dict[str, Any]] = {}
    for sample in samples:
        doc_id = sample["doc_id"]
        row = rows.setdefault(doc_id, {"id": f"{task}/{doc_id}", "task": task})
        row["answer"] = sample["target"]
        for metric in sample["metrics"]:
            if isinstance(sample[metric], int | float):
                row[_column(metric, sample["filter"], task)] = float(sample[metric])
        if doc_id in scores:
            values = scores[doc_id].loglikelihood
            best = max(range(len(values)), key=values.__getitem__)
            row |= {"choice": best, **asdict(scores[doc_id])}
        else:
            row["output"] = sample["filtered_resps"][0]
    return list(rows.values())
