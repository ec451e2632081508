"""Grading of samples: against a server that answers like the API, well and badly."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gidd.cli import main
from gidd.common.config.allowed import problems_of
from gidd.errors import ConfigError, DataError
from gidd.evaluation.compare import compare_results
from gidd.evaluation.judge import ASPECTS, Judge, JudgeOptions, read_samples
from gidd.evaluation.results import EvaluationResult
from tests.support.judge_server import Action, answer, completion, grades, serve_judge

pytest.importorskip("openai", reason="comes with gidd[eval]")

KEY = "sk-test-0123456789-secret"
TEXTS = [f"Sample number {number}." for number in range(6)]
SAMPLES = {i: {"": text} for i, text in enumerate(TEXTS)}
PAIRS = {i: {"_before": text, "_after": f"{text}!"} for i, text in enumerate(TEXTS)}


@pytest.fixture
def server():
    with serve_judge() as judge:
        yield judge


@pytest.fixture
def judge(server, tmp_path):
    """A function that opens the judge again, with the same answers on disk."""

    def open_judge(**options):
        chosen = JudgeOptions(**{"base_url": server.url, "model": "m", "concurrency": 2} | options)
        return Judge(chosen, tmp_path / "answers.jsonl", KEY)

    return open_judge


def write(path: Path, texts, **fields) -> Path:
    path.write_text("".join(json.dumps({"text": text} | fields) + "\n" for text in texts))
    return path


def test_grades_before_and_after(judge):
    result = judge().grade(PAIRS)
    for row, text in zip(result.rows, TEXTS, strict=True):
        assert [row[f"{aspect}_before"] for aspect in ASPECTS] == list(grades(text).values())
        assert [row[f"{aspect}_after"] for aspect in ASPECTS] == list(grades(f"{text}!").values())
    numbers = result.measurements
    expected = sum(grades(text)["clarity"] for text in TEXTS) / 6
    assert numbers["clarity_before"].value == pytest.approx(expected)
    # clarity rises by 1 in all samples, the others stay: signs all equal have p = 2 / 2**6
    assert numbers["clarity_change"] == (1.0, 0.0, 6)
    assert numbers["clarity_p_value"].value == 2 / 64
    assert numbers["style_change"] == (0.0, 0.0, 6)
    assert numbers["style_p_value"].value == 1
    assert numbers["failed_samples"].value == 0
    assert result.manifest["answered_as"] == ["tiny-judge"]


def test_results_are_compared_in_pairs(judge):
    first = judge().grade(SAMPLES)
    second = judge().grade({i: {"": f"{text}!"} for i, text in enumerate(TEXTS)})
    found = {number.name: number.difference for number in compare_results(first, second).numbers}
    assert found["clarity"].is_paired and found["clarity"].value == pytest.approx(1.0)


def test_requests(server, judge):
    judge().grade({0: {"": "{text} with ``` and braces {}"}})
    (request,) = server.requests
    prompt = request.pop("messages")[0]["content"]
    assert prompt.endswith("```\n{text} with ``` and braces {}\n```\n")
    assert request == {"model": "m", "temperature": 0.0, "max_tokens": 1024, "seed": 0}
    assert server.keys == {f"Bearer {KEY}"}


def test_an_answered_text_is_not_asked_again(server, judge, tmp_path):
    samples = {0: {"_before": "same", "_after": "same"}, 1: {"_before": "same", "_after": "other"}}
    result = judge().grade(samples)
    assert judge().grade(samples).to_dict() == result.to_dict()
    assert server.paid == {"same": 1, "other": 1}
    judge(model="m2").grade(samples)  # another model is another answer
    assert server.paid == {"same": 2, "other": 2}


def test_a_half_written_or_damaged_line_loses_its_answer_only(server, judge, tmp_path):
    judge().grade(SAMPLES)
    path = tmp_path / "answers.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [b"[1, 2]\n", lines[0].replace(b'"style": ', b'"style": 99'), lines[1][:-30]]
    path.write_bytes(b"".join([*lines[2:], *damaged]))
    for _ in range(2):  # what was written after the half-written line is read
        judge().grade(SAMPLES)
        assert sorted(server.paid.values()) == [1, 1, 1, 1, 2, 2]


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
    "cut off": completion(answer("x"), "length"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_invalid_answers_are_asked_for_again(name, server, judge):
    bad = Action(body=BAD_ANSWERS[name])
    server.act = lambda text, attempt: bad if attempt < 2 else Action()
    (row,) = judge().grade({0: {"": "x"}}).rows
    assert row == {"id": 0} | grades("x")
    # another seed: at temperature 0 the same one may repeat the answer
    assert [request["seed"] for request in server.requests] == [0, 1, 2]


@pytest.mark.parametrize(
    "content", [f"```json\n{answer('x')}\n```", f"```\n{answer('x')}```\n", json.dumps(grades("x"))]
)
def test_code_blocks_and_plain_grades_are_accepted(content, server, judge):
    server.act = lambda text, attempt: Action(body=completion(content))
    assert judge().grade({0: {"": "x"}}).rows == [{"id": 0} | grades("x")]


@pytest.mark.slow
def test_samples_without_valid_grades_are_excluded_and_counted(server, judge):
    bad = Action(body=completion(answer("x", style=11)))
    server.act = lambda text, attempt: bad if text == f"{TEXTS[2]}!" else Action()
    result = judge().grade(PAIRS)
    assert [row["id"] for row in result.rows] == [0, 1, 3, 4, 5]
    assert result.measurements["failed_samples"].value == 1
    (failure,) = result.manifest["failed"]
    assert failure["id"] == 2 and "style" in failure["reason"] and "11" in failure["reason"]
    server.act = lambda text, attempt: Action()
    assert len(judge().grade(PAIRS).rows) == 6  # asks again for that text only
    assert server.paid.total() == 12 + 3
    server.act = lambda text, attempt: bad
    with pytest.raises(DataError, match="none of 6 samples"):
        judge(model="other").grade(SAMPLES)


@pytest.mark.parametrize("action", [Action(429, b"busy"), Action(503, b"{}"), Action(drop=True)])
def test_temporary_errors_are_retried(action, server, judge):
    server.act = lambda text, attempt: action if attempt < 1 else Action()
    assert len(judge().grade({0: {"": "x"}}).rows) == 1
    assert server.paid == {"x": 1}


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_refused_requests_stop_and_keep_the_answers(status, server, judge):
    body = json.dumps({"error": {"message": f"the key {KEY} is \x1b[31mwrong"}}).encode()
    refuse = Action(status, body)
    server.act = lambda text, attempt: refuse if text == TEXTS[1] else Action()
    with pytest.raises(ConfigError, match=str(status)) as caught:
        judge(concurrency=1).grade(SAMPLES)
    assert KEY not in str(caught.value) and "\x1b" not in str(caught.value)
    assert TEXTS[0] in server.paid and judge().pending({0: SAMPLES[0]}) == {}


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_do_not_carry_the_key_to_another_host(status, server, judge):
    with serve_judge() as thief:
        location = {"Location": f"{thief.url}/chat/completions"}
        server.act = lambda text, attempt: Action(status, b"", location)
        with pytest.raises(ConfigError, match=str(status)):
            judge().grade({0: {"": "x"}})
        assert thief.requests == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "https://", "https://a:hunter2@b.org", "https://b.org?k=hunter2"]
)
def test_only_web_addresses_without_secrets(url):
    (problem,) = problems_of(JudgeOptions(base_url=url))
    assert problem.startswith("base_url") and "hunter2" not in problem


def test_samples_are_read_as_the_commands_write_them(tmp_path):
    first = write(tmp_path / "a.jsonl", ["a", "b"], tokens=[1], manifest={})
    second = write(tmp_path / "b.jsonl", ["c", "d"])
    assert read_samples(first) == {0: {"": "a"}, 1: {"": "b"}}
    expected = {0: {"_before": "a", "_after": "c"}, 1: {"_before": "b", "_after": "d"}}
    assert read_samples(first, second) == expected
    corrected = write(tmp_path / "c.jsonl", ["new"], original="old", id="x1")
    assert read_samples(corrected) == {"x1": {"_before": "old", "_after": "new"}}
    with pytest.raises(DataError, match="a.jsonl: both files must have the same samples"):
        read_samples(first, write(tmp_path / "d.jsonl", ["a"]))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "at least one"),
        (b"text\n", "line 1 is not JSON"),
        (b'{"text": "a"}\n{"text": 3}\n', "line 2"),
        (b'{"text": "a", "id": 1.5}\n', "id"),
        (b'{"text": "a", "id": 1}\n{"text": "b", "id": 1}\n', "id"),
        (b'{"text": "a", "original": "b"}\n{"text": "b"}\n', "original"),
    ],
)
def test_damaged_samples_are_named(content, word, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=word):
        read_samples(tmp_path / "a.jsonl")


@pytest.fixture
def command(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    before = write(tmp_path / "before.jsonl", TEXTS)
    after = write(tmp_path / "after.jsonl", [f"{text}!" for text in TEXTS])
    out = tmp_path / "out" / "judge.json"
    words = ["eval", "judge", str(before), str(after), "--base-url", server.url, "--out", str(out)]
    return [*words, "--model", "m"]


def test_command(server, command, tmp_path, capfd):
    main([*command, "--yes"])
    out, err = capfd.readouterr()
    assert "clarity_change" in out and "12 requests to m" in err and "12,288 output tokens" in err
    result = EvaluationResult.read(tmp_path / "out" / "judge.json")
    assert result.kind == "judge" and len(result.rows) == 6
    main([*command, "--json"])  # nothing is left to pay for: no confirmation
    assert json.loads(capfd.readouterr().out)["rows"] == list(result.rows)
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Grade this:\n```\n{text}\n```\n")
    main([*command, "--yes", "--prompt", str(prompt)])  # another prompt is another answer
    assert server.requests[-1]["messages"][0]["content"].startswith("Grade this:")
    assert server.paid.total() == 24


def test_the_key_is_in_no_file_and_no_message(server, command, tmp_path, capfd):
    echo = completion(answer("x").replace("so it is", KEY), model=f"model of {KEY}")
    server.act = lambda text, attempt: Action(body=echo)
    main([*command, "--yes"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4 and not [p for p in files if KEY.encode() in p.read_bytes()]
    server.act = lambda text, attempt: Action(401, json.dumps({"error": {"message": KEY}}).encode())
    for words in (["--model", "other"], ["--api-key-variable", KEY]):
        with pytest.raises(SystemExit):
            main([*command, "--yes", *words])
    assert KEY not in "".join(capfd.readouterr())


class Terminal:
    def __init__(self, lines):
        self.readline = lines.__next__

    def isatty(self):
        return True


def test_nothing_is_sent_without_confirmation(server, command, capfd, monkeypatch):
    with pytest.raises(SystemExit):
        main(command)
    assert "--yes" in capfd.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal(iter(["n\n", "", "y\n"])))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(command)
    assert server.requests == []
    main(command)
    assert server.paid.total() == 12


def test_mistakes_and_servers_without_keys(server, command, tmp_path, capfd, monkeypatch):
    def message(*words):
        with pytest.raises(SystemExit):
            main([*command, "--yes", *words])
        return capfd.readouterr().err

    assert "--concurrency" in message("--concurrency", "0")
    assert "--timeout" in message("--timeout", "0")
    assert "--prompt" in message("--prompt", str(write(tmp_path / "p.txt", ["no place for it"])))
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY" in message("--base-url", "https://api.openai.com/v1")
    main([*command, "--yes"])
    assert KEY not in str(server.keys)


@pytest.mark.slow
def test_a_killed_evaluation_pays_for_no_recorded_answer_twice(server, command, tmp_path):
    """`kill -9` while both threads wait for an answer: all answers before are in the file."""
    server.num_to_hold = 2
    server.act = lambda text, attempt: Action(hold=server.paid.total() >= 5)
    words = [sys.executable, "-m", "gidd.cli", *command, "--yes", "--concurrency", "2"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    try:
        assert server.on_hold.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    num_paid = server.paid.total()
    answers = tmp_path / "out" / "judge.json.answers.jsonl"
    assert len(answers.read_bytes().splitlines()) == num_paid
    server.act = lambda text, attempt: Action()
    main([*command, "--yes"])
    assert server.paid == dict.fromkeys([*TEXTS, *(f"{text}!" for text in TEXTS)], 1)
