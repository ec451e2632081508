"""Tasks by name and of local files, and the command `gidd eval tasks`."""

import math
from pathlib import Path
from typing import Any

import pytest

from gidd.cli.eval.tasks import main
from gidd.errors import ConfigError, DataError
from gidd.evaluation.results import EvaluationResult
from gidd.evaluation.tasks.task_files import read_tasks
from gidd.evaluation.tasks.task_names import resolve_names
from gidd.evaluation.tasks.tasks import evaluate_tasks
from gidd.pipeline import Pipeline

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.usefixtures("datasets_cache")


# local tasks


def test_a_task_of_json_lines_and_of_yaml(pipe: Pipeline) -> None:
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
    assert manifest["calls"] >= seen[-1][0]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TASK"),
        (["paper", "--repeats", "0", "--confidence", "2"], "(?s)--repeats.*--confidence"),
        (["paper", "--limit", "0"], "--limit"),
    ],
)
def test_mistakes_are_reported_before_the_model_is_loaded(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        main(["no/model", *arguments])


def test_names_of_the_paper() -> None:
    assert resolve_names(["ARC-e", "OBQA", "PIQA", "arc_easy"]) == [
        "arc_easy",
        "openbookqa",
        "piqa",
    ]
    assert len(resolve_names(["paper"])) == 7
    assert resolve_names(["My_Task"]) == ["My_Task"]


def test_data_that_cannot_be_reached_are_named(pipe: Pipeline) -> None:
    with pytest.raises(DataError, match="winogrande.*HF_HUB_OFFLINE"):
        evaluate_tasks(pipe, ["WinoGrande"])


# files that are not trusted


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
        read_tasks(file)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("process_docs: !function code.run", "!function"),
        ("unsafe_code: true", "unsafe_code"),
        ("use_prompt: promptsource:x", "use_prompt"),
        ("class: code.Task", "class"),
        ("dataset_kwargs: {trust_remote_code: true}", "trust_remote_code"),
        ("metric_list: [{metric: acc, hf_evaluate: true}]", "acc"),
        ("metric_list: [{metric: someone/metric}]", "someone/metric"),
        ("doc_to_text: \"{{ ''.__class__ }}\"", "__class__"),
        ("doc_to_text: \"{{ cycler.__init__.__globals__.os.popen('id') }}\"", "popen"),
        ("doc_to_text: \"{{ x['\\\\x5f_class__'].mro() }}\"", "calls a function"),
        ('doc_to_text: "{{ lipsum() }}"', "lipsum"),
        ('doc_to_text: "{{ unfinished"', "template"),
        ("include: {}", "folder"),
    ],
)
def test_yaml_with_code_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"task: mine\ndataset_path: json\n{entry.replace('{}', str(tmp_path))}\n")
    with pytest.raises((DataError, ConfigError), match=message):
        read_tasks(file)


def test_yaml_may_include_yaml_without_code(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("dataset_path: json\ndataset_kwargs: {data_files: a.json}\n")
    (tmp_path / "task.yaml").write_text("include: base\ntask: mine\n")
    (task,) = read_tasks(tmp_path / "task.yaml")
    assert (task["task"], task["dataset_path"]) == ("mine", "json")
    assert task["dataset_kwargs"]["data_files"] == str(tmp_path / "a.json")
    (tmp_path / "base").write_text("include: base\n")
    with pytest.raises(DataError, match="includes"):
        read_tasks(tmp_path / "task.yaml")
    (tmp_path / "base").write_text("process_docs: !function code.run\n")
    with pytest.raises(DataError, match="!function"):
        read_tasks(tmp_path / "task.yaml")
