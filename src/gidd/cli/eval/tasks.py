"""Measure accuracy on tasks of lm-evaluation-harness and on local multiple-choice questions.

- A question stops when the ranking of its choices is decided, unless --no-early-stop.
- --rule paper scores context and choice together at 128 times, as in the paper; the default scores
  the choice, given the context.
- `paper` is arc_easy, arc_challenge, boolq, hellaswag, piqa, openbookqa and winogrande.
- Local questions: one JSON object per line of a .jsonl file, with the number of the right choice:
  {"question": "The sky is", "choices": ["blue.", "loud."], "answer": 0}
- A .yaml file is a task of lm_eval, which runs the Python functions that it names (!function): use
  files of people you trust.

Examples:
  gidd eval tasks models/nano arc_easy piqa --limit 200
  gidd eval tasks models/nano questions.jsonl --out tasks.json
  gidd eval tasks models/nano paper --rule paper
  gidd eval tasks models/nano my_tasks/
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.eval.report import ResultOptions, report
from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_checked
from gidd.common.config.allowed import integer
from gidd.common.messages import show_counts
from gidd.errors import ConfigError
from gidd.evaluation.options import TaskOptions


@dataclass(frozen=True, kw_only=True)
class TasksCommand:
    """Options of `gidd eval tasks`."""

    model: ModelName
    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASK...")]
    """Tasks of lm_eval, `paper`, .jsonl or .yaml files, or folders of them."""
    limit: Annotated[int, integer(1)] | None = None
    """Number of questions of each task; by default all."""
    num_fewshot: Annotated[int, integer(0)] | None = None
    """Number of examples before each question; by default the number of the task, or 0."""
    scoring: Flat[TaskOptions] = field(default_factory=TaskOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)


def main(arguments: Sequence[str]) -> None:
    """Parse, score, report."""
    command = "gidd eval tasks", __doc__, arguments
    options = parse_checked(TasksCommand, *command)
    if options.scoring.rule == "paper":  # which has other defaults
        default = replace(options, scoring=TaskOptions.of_rule("paper"))
        options = parse_checked(TasksCommand, *command, default)
    if not options.tasks:
        raise ConfigError("TASK must be at least one task, file or folder, such as paper.")
    for task in options.tasks:
        if task.endswith((".jsonl", ".yaml")) and not Path(task).is_file():
            raise ConfigError(f"{task} is not a file. Check the path.")
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of lm_eval and datasets, read on import
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.harness.tasks import evaluate_tasks

    with show_counts("scoring") as on_passes:
        limits = {"limit": options.limit, "num_fewshot": options.num_fewshot}
        result = evaluate_tasks(pipe, options.tasks, options.scoring, on_passes=on_passes, **limits)
    report(result, options.result)
