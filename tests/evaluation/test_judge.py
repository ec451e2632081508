"""`benchmarks/judge.py`, against a server that answers like the API, well and badly."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gidd.errors import DataError
from gidd.evaluation.compare import compare_results
from gidd.evaluation.results import EvaluationResult
from tests.support.judge_server import Action, answer, completion, grades, serve_judge

pytest.importorskip("openai", reason="comes with gidd[eval]")

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    from judge import ASPECTS, PROMPT, Judge, main, read_samples
finally:
    del sys.path[0]

KEY = "sk-test-0123456789-secret"
TEXTS = [f"Sample number {number}." for number in range(6)]
CORRECTED = [f"{text}!" for text in TEXTS]


@pytest.fixture
def server():
    with serve_judge() as server:
        yield server


@pytest.fixture
def words(server, tmp_path, monkeypatch):
    """The arguments of the script."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    rows = [{"original": a, "text": b} for a, b in zip(TEXTS, CORRECTED, strict=True)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(tmp_path / "samples.jsonl"), "--out", str(tmp_path / "judge.json")]
    return [*words, "--base-url", server.url, "--model", "m"]


@pytest.fixture
def run(words, tmp_path, monkeypatch):
    """A function that runs the script and returns its result."""

    def run(*more: str) -> EvaluationResult:
        monkeypatch.setattr(sys, "argv", ["judge.py", *words, *more])
        main()
        return EvaluationResult.read(tmp_path / "judge.json")

    return run


@pytest.fixture
def judge(server, tmp_path):
    return Judge(tmp_path / "answers.jsonl", "m", server.url, KEY)


def test_grades_before_and_after(run, capsys):
    result = run("--yes", "--json")
    out = capsys.readouterr().out
    assert "clarity_change" in out
    assert json.loads(out.splitlines()[-1])["rows"] == result.rows
    for row, text in zip(result.rows, TEXTS, strict=True):
        assert [row[f"{aspect}_before"] for aspect in ASPECTS] == list(grades(text).values())
        assert [row[f"{aspect}_after"] for aspect in ASPECTS] == list(grades(f"{text}!").values())
    numbers = result.measurements
    assert numbers["clarity_before"].value == sum(grades(text)["clarity"] for text in TEXTS) / 6
    assert numbers["clarity_change"] == (1.0, 0.0, 6)
    assert numbers["clarity_p_value"].value == 0
    assert numbers["style_change"] == (0.0, 0.0, 6)
    assert numbers["style_p_value"].value == 1
    assert numbers["failed_samples"].value == 0


def test_grades_of_samples_are_compared_in_pairs(judge):
    for text in TEXTS + CORRECTED:
        judge.grade(text)
    before, after = (judge.result([{"": t} for t in texts]) for texts in (TEXTS, CORRECTED))
    numbers = {n.name: n.difference for n in compare_results(before, after).numbers}
    assert numbers["clarity"].is_paired and numbers["clarity"].value == pytest.approx(1.0)


def test_requests(server, judge):
    judge.grade("{text} with ``` and braces {}")
    (request,) = server.requests
    (message,) = request.pop("messages")
    assert message["content"] == PROMPT.replace("{text}", "{text} with ``` and braces {}")
    assert request == {"model": "m", "temperature": 0.0, "max_tokens": 1024, "seed": 0}
    assert server.keys == {f"Bearer {KEY}"}


def test_nothing_is_paid_for_twice(server, run, tmp_path):
    """Not with half-written and damaged lines either, beyond the answers that they lose."""
    first = run("--yes")
    assert run().rows == first.rows  # nothing to send: no confirmation
    assert server.paid == dict.fromkeys(TEXTS + CORRECTED, 1)
    path = tmp_path / "judge.answers.jsonl"
    lines = path.read_bytes().strip().splitlines()[::2]
    damaged = [b"[1, 2]", lines[0].replace(b'\\"style\\": ', b'\\"style\\": 99'), lines[1][:-30]]
    path.write_bytes(b"\n".join([*lines[2:], *damaged]))
    for _ in range(2):  # what was written after the half-written line is read
        assert run("--yes").rows == first.rows
        assert sorted(server.paid.values()) == 10 * [1] + 2 * [2]
    run("--yes", "--model", "m2")  # another model is another answer
    assert server.paid.total() == 14 + 12


BAD_ANSWERS = {
    "not JSON": b"<html>busy</html>",
    "empty": b"",
    "no choices": b'{"choices": []}',
    "no text": b'{"choices": [{"message": {"content": null}}]}',
    "a list": b"[]",
    "text around": completion("Here you are:\n" + answer("x")),
    "missing grade": completion(json.dumps({"clarity": {"score": 3}})),
    "grade 11": completion(answer("x", style=11)),
    "grade 7.5": completion(answer("x", style=7.5)),
    "true": completion(answer("x", style=True)),
    "string": completion(answer("x", style="7")),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_invalid_answers_are_asked_for_again(name, server, judge):
    bad = Action(body=BAD_ANSWERS[name])
    server.act = lambda text, attempt: bad if attempt < 2 else Action()
    judge.grade("x")
    assert judge.grades == {judge.key("x"): grades("x")}
    # another seed: at temperature 0 the same one may repeat the answer
    assert [request["seed"] for request in server.requests] == [0, 1, 2]


@pytest.mark.parametrize("content", [f"```json\n{answer('x')}\n```", f"```\n{answer('x')}```\n"])
def test_blocks_of_code_are_accepted(content, server, judge):
    server.act = lambda text, attempt: Action(body=completion(content))
    judge.grade("x")
    assert judge.grades == {judge.key("x"): grades("x")}


@pytest.mark.slow
def test_samples_without_valid_grades_are_excluded_and_counted(server, run):
    bad = Action(body=completion(answer("x", style=11)))
    server.act = lambda text, attempt: bad if text == CORRECTED[2] else Action()
    result = run("--yes")
    assert [row["id"] for row in result.rows] == [0, 1, 3, 4, 5]
    assert result.measurements["failed_samples"].value == 1
    server.act = lambda text, attempt: Action()
    assert len(run("--yes").rows) == 6  # asks again for that text only
    assert server.paid.total() == 12 + 3
    server.act = lambda text, attempt: bad
    assert run("--yes", "--model", "other").measurements["failed_samples"].value == 6


@pytest.mark.parametrize("action", [Action(429, b"busy"), Action(503, b"{}"), Action(drop=True)])
def test_temporary_errors_are_retried(action, server, judge):
    server.act = lambda text, attempt: action if attempt < 1 else Action()
    judge.grade("x")
    assert server.paid == {"x": 1}


def test_a_refused_request_stops_and_the_key_is_in_no_file_and_no_message(
    server, run, tmp_path, capfd
):
    said = json.dumps({"error": {"message": f"the key {KEY} is \x1b[31mwrong"}}).encode()
    echo = completion(answer("x").replace("so it is", KEY), model=f"model of {KEY}")
    server.act = lambda text, attempt: Action(401, said) if text == TEXTS[5] else Action(body=echo)
    with pytest.raises(SystemExit):
        run("--yes")
    error = capfd.readouterr().err
    assert "401" in error and KEY not in error and "\x1b" not in error
    assert not [path for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()]
    server.act = lambda text, attempt: Action()
    assert len(run("--yes").rows) == 6
    assert set(server.paid.values()) == {1}


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_do_not_carry_the_key_to_another_host(status, server, run):
    with serve_judge() as thief:
        location = {"Location": f"{thief.url}/chat/completions"}
        server.act = lambda text, attempt: Action(status, b"", location)
        with pytest.raises(SystemExit):
            run("--yes")
        assert thief.requests == []


def test_either_all_samples_or_none_are_corrections(tmp_path):
    """Other damage of samples: tests/evaluation/test_samples.py."""
    (tmp_path / "a.jsonl").write_text('{"text": "a", "original": "b"}\n{"text": "b"}\n')
    with pytest.raises(DataError, match="original"):
        read_samples(tmp_path / "a.jsonl")


def test_nothing_is_sent_without_confirmation_and_little_with_quick(server, run, capfd, words):
    with pytest.raises(SystemExit):
        run()
    assert "12 requests" in capfd.readouterr().err and server.requests == []
    script = [sys.executable, str(FOLDER / "judge.py"), *words, "--yes", "--quick"]
    subprocess.run(script, check=True)
    assert server.paid.keys() == {*TEXTS[:2], *CORRECTED[:2]}


@pytest.mark.slow
def test_a_killed_evaluation_pays_for_no_recorded_answer_twice(server, words, run, tmp_path):
    """`kill -9` while threads wait for an answer: all answers before are in the file."""
    server.num_to_hold = 7
    server.act = lambda text, attempt: Action(hold=server.paid.total() >= 5)
    script = [sys.executable, str(FOLDER / "judge.py"), *words, "--yes"]
    process = subprocess.Popen(script, stderr=subprocess.PIPE, env=os.environ)
    try:
        assert server.on_hold.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    answers = (tmp_path / "judge.answers.jsonl").read_bytes().split(b"\n\n")
    assert len(answers) == server.paid.total() == 5
    server.act = lambda text, attempt: Action()
    run("--yes")
    assert server.paid == dict.fromkeys(TEXTS + CORRECTED, 1)
