"""Tasks by name and of local files, and the command `gidd eval tasks`."""

import math
from pathlib import Path
from typing import Any

import pytest

from gidd.cli.eval.tasks import main
from gidd.cli.model_options import ModelOptions
from gidd.errors import DataError
from gidd.evaluation.harness.tasks import evaluate_tasks, read_questions, resolve_names
from gidd.evaluation.options import TaskOptions
from gidd.evaluation.results import EvaluationResult
from gidd.pipeline import Pipeline

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.usefixtures("datasets_cache")


# local tasks


@pytest.mark.slow
def test_a_task_of_json_lines_and_of_yaml(pipe: Pipeline, monkeypatch: Any) -> None:
    monkeypatch.chdir(TASKS)  # data of YAML tasks are relative to the current folder
    seen: list[tuple[int, int]] = []
    result = evaluate_tasks(
        pipe,
        [str(TASKS / "affairs.jsonl"), str(TASKS)],
        on_passes=lambda done, expected: seen.append((done, expected)),
    )
    assert {"acc_affairs", "acc_norm_affairs", "acc_affairs_yaml"} < set(result.measurements)
    rows = {row["id"]: row for row in result.rows}
    assert len(rows) == 4 + 3 + 3 + 3
    own = [row for row in result.rows if row["task"] == "affairs"]
    accuracy = result.measurements["acc_affairs"]
    assert accuracy.value == sum(row["acc_affairs"] for row in own) / 4
    assert [row["acc_affairs"] == 1 for row in own] == [r["choice"] == r["answer"] for r in own]
    assert len(rows["affairs/1"]["loglikelihood"]) == 3
    # of a mean of zeros and ones: sqrt(p (1 - p) / (n - 1))
    spread = math.sqrt(accuracy.value * (1 - accuracy.value) / 3)
    assert accuracy.standard_error == pytest.approx(spread)
    manifest = result.manifest
    assert manifest["tasks"]["affairs_yaml"]["version"] == 2.0
    assert manifest["truncated_requests"] > 0
    assert manifest["forward_passes"] >= seen[-1][0]
    assert manifest["early_stop"] == {"confidence": 0.99, "min_repeats": 3}
    assert all(done <= expected for done, expected in seen)
    assert isinstance(rows["continue_text/0"]["output"], str)
    bits = result.measurements["bits_per_byte_whole_texts"]
    texts = [row["answer"] for row in result.rows if row["task"] == "whole_texts"]
    total = sum(row["output"] for row in result.rows if row["task"] == "whole_texts")
    assert bits.value == pytest.approx(-total / math.log(2) / sum(map(len, texts)))
    assert bits.standard_error is not None


def test_the_command_saves_a_result(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    out = tmp_path / "tasks.json"
    questions = str(TASKS / "affairs.jsonl")
    options = ["--limit", "2", "--nodes", "1", "--repeats", "2", "--no-early-stop"]
    main([str(model_folder), questions, *options, "--device", "cpu", "--out", str(out)])
    assert "acc_norm_affairs" in capsys.readouterr().out
    result = EvaluationResult.read(out)
    assert (result.kind, len(result.rows)) == ("tasks", 2)
    assert result.manifest["early_stop"] is None
    assert result.manifest["limit"] == 2


def test_names_of_the_paper() -> None:
    assert resolve_names(["ARC-e", "OBQA", "PIQA", "arc_easy"]) == [
        "arc_easy",
        "openbookqa",
        "piqa",
    ]
    assert len(resolve_names(["paper"])) == 7
    assert resolve_names(["My_Task"]) == ["My_Task"]
    assert len(resolve_names([str(TASKS)])) == 3  # YAML tasks; .jsonl files may be their data


def test_the_rule_of_the_paper_has_other_defaults(monkeypatch: Any) -> None:
    seen: list[TaskOptions] = []
    monkeypatch.setattr(ModelOptions, "load", lambda *_: None)

    def evaluate(_pipe: Any, _tasks: Any, options: TaskOptions, **_settings: Any) -> None:
        seen.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("gidd.evaluation.harness.tasks.evaluate_tasks", evaluate)
    for options in (["--rule", "paper"], ["--rule", "paper", "--nodes", "4"], []):
        with pytest.raises(KeyboardInterrupt):
            main(["model", "paper", *options])
    found = [(each.grid, each.nodes, each.repeats) for each in seen]
    assert found == [("paper", 128, 1), ("paper", 4, 1), ("sine", 4, 16)]


def test_a_file_that_does_not_exist_is_named(pipe: Pipeline) -> None:
    with pytest.raises(DataError, match="no.yaml"):
        evaluate_tasks(pipe, ["no.yaml"])


@pytest.mark.long
def test_data_that_cannot_be_reached_are_named(pipe: Pipeline) -> None:
    with pytest.raises(DataError, match="winogrande.*HF_HUB_OFFLINE"):
        evaluate_tasks(pipe, ["WinoGrande"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ("[]", "question"),
        ('{"question": "a", "choices": ["b"], "answer": 0}', "choices"),
        ('{"question": "a", "choices": ["b", ""], "answer": 0}', "choices"),
        ('{"question": "a", "choices": ["b", "c"], "answer": 2}', r"\[0, 2\)"),
        ('{"question": "a", "choices": ["b", "c"], "answer": true}', "answer"),
        ("", "no questions"),
    ],
)
def test_invalid_questions_are_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read_questions(file)
