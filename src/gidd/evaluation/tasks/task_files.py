"""Tasks of local files: YAML of lm-evaluation-harness without code, or JSON lines.

A line of JSON is a question: {"question": ..., "choices": [...], "answer": 0}, with the number of
the right choice; "context" may be used for "question".

lm_eval executes Python that a task names (`!function`), evaluates templates without a sandbox, and
downloads metrics as code. A file may come from anyone, so that all of these are refused here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gidd.common.codec import plain_from_yaml
from gidd.common.files import parse_json, read_regular
from gidd.common.limits import DOCUMENT_BYTES, YAML_BYTES
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.common.urls import is_url
from gidd.errors import ConfigError, DataError

QUESTION_FIELDS = ("question", "context")
_ENDINGS = (".yaml", ".yml", ".jsonl")
_MAX_CHOICES = 1024
_INCLUDES = 8

_REFUSED = {
    "class": "a task of a file has no Python class",
    "custom_dataset": "a task of a file has no Python function",
    "unsafe_code": "code is not executed",
    "use_prompt": "prompts of other packages are not loaded",
}
_METHODS = frozenset(
    ("strip", "lstrip", "rstrip", "split", "replace", "lower", "upper", "title", "capitalize")
    + ("join", "index", "count", "startswith", "endswith", "removeprefix", "removesuffix")
    + ("items", "keys", "values", "get")
)
"""Methods that a template may call: none of them leads to other objects."""

_FUNCTION = "use lm_eval itself for tasks with code of people you trust"


def is_task_file(name: str) -> bool:
    """Whether a task is named by a file, or by a folder that has such files."""
    path = Path(name)
    return path.suffix in _ENDINGS or (path.is_dir() and bool(_files(path)))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in _ENDINGS)


def read_tasks(path: Path) -> list[dict[str, Any]]:
    """Return the configurations of the tasks of a file, or of all files of a folder."""
    if path.is_dir():
        files = _files(path)
        # the data of a YAML task are often next to it
        tasks = [file for file in files if file.suffix != ".jsonl"] or files
        if not tasks:
            raise DataError(f"{path} has no .yaml or .jsonl file. Name a folder with tasks.")
        return [_read_task(file) for file in tasks]
    if not path.is_file():
        raise DataError(f"{path} is not a file. Name a .yaml or .jsonl file, or a folder of them.")
    return [_read_task(path)]


def _read_task(path: Path) -> dict[str, Any]:
    return _question_task(path) if path.suffix == ".jsonl" else _yaml_task(path)


def _question_task(path: Path) -> dict[str, Any]:
    """Return a multiple-choice task of the questions of a JSONL file."""
    data = read_regular(path, DataError, DOCUMENT_BYTES)
    rows = list(_questions(path, data))
    if not rows:
        raise DataError(f"{path} has no questions. Write one JSON object per line.")

    def load(**_: Any) -> dict[str, Any]:
        return {"test": optional_package("datasets", "eval").Dataset.from_list(rows)}

    return {
        "task": _task_name(path.stem),
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
        "metadata": {"version": 1.0, "file": _fingerprint(path, data)},
    }


def _questions(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = parse_json(line, where)
        except ValueError as error:
            raise DataError(f"{where} must be a JSON object: {error}.") from error
        yield _question(record, where)


def _question(record: object, where: str) -> dict[str, Any]:
    found = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    text = next((found[name] for name in QUESTION_FIELDS if name in found), None)
    choices: Any = found.get("choices")
    answer: Any = found.get("answer")
    if not isinstance(text, str):
        raise DataError(f'{where} must have a text "question" or "context", got {shorten(text)}.')
    if not _are_choices(choices):
        raise DataError(f'{where} must have "choices", 2 or more texts, got {shorten(choices)}.')
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise DataError(
            f'{where} must have "answer", the number of a choice in [0, {len(choices)}), got '
            f"{shorten(answer)}."
        )
    return {"question": text, "choices": choices, "answer": answer}


def _are_choices(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    choices = cast("list[object]", value)
    return 2 <= len(choices) <= _MAX_CHOICES and all(isinstance(c, str) and c for c in choices)


def _yaml_task(path: Path) -> dict[str, Any]:
    """Return the configuration of a YAML file, if it has no code."""
    config = _load(path, _INCLUDES)
    name = config.get("task")
    if not isinstance(name, str):
        raise DataError(
            f'{path} must have "task", the name of one task, got {shorten(name)}. Groups are not '
            "read from files: name the folder of their tasks."
        )
    config["task"] = _task_name(name)
    for key, reason in _REFUSED.items():
        if config.get(key):
            raise DataError(f"{path} has {key}, which is refused: {reason}; {_FUNCTION}.")
    config["dataset_kwargs"] = _dataset_options(path, config.get("dataset_kwargs"))
    _check_metrics(path, config.get("metric_list"))
    for template in _texts(config):
        _check_template(path, template)
    metadata = config.get("metadata")
    known = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    data = read_regular(path, DataError, YAML_BYTES)
    config["metadata"] = known | {"file": _fingerprint(path, data)}
    return config


def _load(path: Path, includes: int) -> dict[str, Any]:
    """Read a YAML file and those that it includes; its own entries win."""
    text = read_regular(path, DataError, YAML_BYTES).decode(errors="replace")
    if re.search(r"!function\b", text):
        raise DataError(
            f"{path} has !function, which would execute Python. Remove it, or {_FUNCTION}."
        )
    found = plain_from_yaml(text)
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a YAML mapping, got {shorten(found)}.")
    config = cast("dict[str, Any]", found)
    names = config.pop("include", [])
    merged: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else cast("list[object]", names):
        if not includes:
            raise DataError(f"{path} includes more than {_INCLUDES} files in one another.")
        merged |= _load(path.parent / str(name), includes - 1)
    return merged | config


def _dataset_options(path: Path, value: object) -> dict[str, Any]:
    """Return options of `datasets.load_dataset` whose files are relative to the YAML file."""
    options = dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
    if options.get("trust_remote_code"):
        raise DataError(f"{path} has trust_remote_code, which is refused. Remove it.")
    if "data_files" in options:
        options["data_files"] = _resolve(path.parent, options["data_files"])
    return options


def _resolve(folder: Path, files: Any) -> Any:
    match files:
        case str():
            return files if is_url(files) else str((folder / files).resolve())
        case dict():
            named = cast("dict[str, Any]", files)
            return {name: _resolve(folder, entry) for name, entry in named.items()}
        case list():
            return [_resolve(folder, entry) for entry in cast("list[Any]", files)]
        case _:
            return files


def _check_metrics(path: Path, metrics: object) -> None:
    """Refuse metrics that are not lm_eval's own: it would download them as code."""
    listed = cast("Sequence[object]", metrics) if isinstance(metrics, list) else []
    require_own_metrics(str(path), [cast("Any", m) for m in listed if isinstance(m, dict)])


def require_own_metrics(what: str, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless all metrics of a task are registered in lm_eval."""
    optional_package("lm_eval.api.metrics", "eval")
    known = optional_package("lm_eval.api.registry", "eval").metric_registry
    for metric in metrics:
        name = metric.get("metric")
        # what is callable comes from the code of lm_eval's own tasks
        if metric.get("hf_evaluate") or (isinstance(name, str) and name not in known):
            raise ConfigError(
                f"{what} has the metric {shorten(name)}, which lm_eval would download as code "
                "from the Hugging Face hub. That is refused; use acc, acc_norm or another of its "
                "own metrics."
            )


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for entry in cast("dict[Any, Any]", value).values():
                yield from _texts(entry)
        case list():
            for entry in cast("list[Any]", value):
                yield from _texts(entry)
        case _:
            pass


def _check_template(path: Path, text: str) -> None:
    """Refuse a template that calls anything but simple methods: lm_eval has no sandbox."""
    jinja: Any = optional_package("jinja2", "eval")
    try:
        tree = jinja.Environment().parse(text)
    except jinja.TemplateError as error:
        raise DataError(f"{path} has an invalid template {shorten(text)}: {error}.") from error
    nodes = jinja.nodes
    for call in tree.find_all(nodes.Call):
        target = call.node
        is_method = isinstance(target, nodes.Getattr) and target.attr in _METHODS
        if not is_method and getattr(target, "name", None) != "range":
            raise DataError(
                f"{path} has the template {shorten(text)}, which calls a function. Templates may "
                f"call {', '.join(sorted(_METHODS))} and range."
            )
    for found in tree.find_all(nodes.Getattr):
        if found.attr.startswith("_"):
            raise DataError(f"{path} has a template that reads {found.attr}, which is refused.")


def _task_name(name: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise DataError(
            f"the name of a task must be 1 to 100 letters, digits, '_', '-' or '.', got "
            f"{shorten(name)}. Rename it."
        )
    return name


def _fingerprint(path: Path, data: bytes) -> dict[str, str]:
    return {"name": path.name, "sha256": hashlib.sha256(data).hexdigest()}
