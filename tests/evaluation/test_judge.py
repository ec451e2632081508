"""Grading of samples: against a server that answers like the API, well and badly."""

import json
import signal
import subprocess
import sys
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest

from gidd.cli import main
from gidd.errors import ConfigError, DataError
from gidd.evaluation.judge import judge_client
from gidd.evaluation.judge.judge import JUDGE_PROMPT, Judge, grade_changes, parse_grades
from gidd.evaluation.judge.judge_client import ChatEndpoint, InvalidReply, NoReply, Reply
from gidd.evaluation.judge.judge_journal import open_journal
from gidd.evaluation.judge.judge_samples import JudgedSample, read_samples
from gidd.evaluation.results import EvaluationResult
from tests.support.judge_server import Action, answer, completion, grades, serve_judge

KEY = "sk-test-0123456789-secret"
TEXTS = [f"Sample number {number}." for number in range(6)]


@pytest.fixture
def server():
    with serve_judge() as judge:
        yield judge


@pytest.fixture
def delays():
    return []


@pytest.fixture
def judge(server, delays):
    return Judge(
        endpoint=endpoint(server), concurrency=2, wait=lambda stop, seconds: delays.append(seconds)
    )


def endpoint(server, **options):
    return ChatEndpoint(
        **{"base_url": server.url, "model": "m", "key": KEY, "timeout": 5} | options
    )


def write(path: Path, texts, **fields) -> Path:
    path.write_text("".join(json.dumps({"text": text} | fields) + "\n" for text in texts))
    return path


def run(judge, samples, path):
    with open_journal(path) as journal:
        failed = judge.grade(judge.pending(samples, journal), journal)
        return judge.result(samples, journal, failed)


def samples_of(texts, better=False):
    return [JudgedSample(i, text, f"{text}!" if better else None) for i, text in enumerate(texts)]


def test_prompt_is_that_of_the_paper():
    digest = "8a479a0970a11ab6c05d45a2bc0e4341d7ab08e2e3b3940f5d6b3c6ee9e12998"
    assert sha256(JUDGE_PROMPT.encode()).hexdigest() == digest


def test_grades_before_and_after(server, judge, tmp_path):
    result = run(judge, samples_of(TEXTS, better=True), tmp_path / "journal")
    assert [row["before"] for row in result.rows] == [grades(text) for text in TEXTS]
    assert [row["after"] for row in result.rows] == [grades(f"{text}!") for text in TEXTS]
    numbers = result.measurements
    expected = sum(grades(text)["clarity"] for text in TEXTS) / 6
    assert numbers["clarity_before"].value == pytest.approx(expected)
    # clarity rises by 1 in all samples, the others stay: signs all equal have p = 2 / 2**6
    assert numbers["clarity_change"] == (1.0, 0.0, 6)
    assert numbers["clarity_p_value"].value == 2 / 64
    assert numbers["style_change"] == (0.0, 0.0, 6)
    assert numbers["style_p_value"].value == 1
    assert [change.stars for change in grade_changes(result.rows)] == ["**", "", "", "", ""]
    assert numbers["failed_samples"].value == 0
    assert result.manifest["judge"]["answered_as"] == ["tiny-judge"]
    assert result.manifest["usage"] == {"prompt_tokens": 3600, "completion_tokens": 1200}


def test_request_is_that_of_the_api(server, judge, tmp_path):
    run(judge, samples_of(["{text} with ``` and braces {}"]), tmp_path / "journal")
    (request,) = server.requests
    prompt = request.pop("messages")[0]["content"]
    assert prompt.endswith("```\n{text} with ``` and braces {}\n```")
    assert request == {"model": "m", "temperature": 0.0, "max_tokens": 1024, "seed": 0}
    assert server.paths == ["/v1/chat/completions"]
    assert server.keys == [f"Bearer {KEY}"]


def test_stars_are_those_of_the_paper():
    # changes 0, 1, 1, 1: mean 0.75, standard error 0.25, 3 sigma
    def rows(*changes):
        flat = dict.fromkeys(grades(""), 5)
        return [{"before": flat, "after": flat | {"style": 5 + change}} for change in changes]

    def stars(*changes):
        return grade_changes(rows(*changes))[3].stars

    assert stars(0, 1, 1, 1) == "*"
    assert stars(2, 1, 1, 1, 1, 1, 1, 1) == "**"
    assert stars(0, 0, 0, 1) == ""


def test_equal_texts_are_paid_for_once(server, judge, tmp_path):
    samples = [JudgedSample(0, "same", "same"), JudgedSample(1, "same", "other")]
    result = run(judge, samples, tmp_path / "journal")
    assert server.paid == {"same": 1, "other": 1}
    assert len(result.rows) == 2
    again = run(judge, samples, tmp_path / "journal")
    assert again.to_dict() == result.to_dict()
    assert server.paid == {"same": 1, "other": 1}


def test_other_settings_are_other_answers(server, judge, tmp_path):
    run(judge, samples_of(["a"]), tmp_path / "journal")
    other = Judge(endpoint=endpoint(server, model="m2"))
    run(other, samples_of(["a"]), tmp_path / "journal")
    assert server.paid == {"a": 2}


BAD_ANSWERS = {
    "not JSON": b"<html>busy</html>",
    "empty": b"",
    "no choices": b'{"choices": []}',
    "error as answer": b'{"error": {"message": "x"}}',
    "no text": b'{"choices": [{"message": {"content": null}}]}',
    "a list": b"[]",
    "deep": b"[" * 5000,
    "text around": completion("Here you are:\n" + answer("x")),
    "missing grade": completion(json.dumps({"clarity": {"score": 3}})),
    "grade 11": completion(answer("x", style=11)),
    "grade 0": completion(answer("x", style=0)),
    "grade 7.5": completion(answer("x", style=7.5)),
    "true": completion(answer("x", style=True)),
    "string": completion(answer("x", style="7")),
    "null": completion(answer("x", factuality=None)),
    "cut off": completion(answer("x")[:-20], "length"),
    "cut off, complete": completion(answer("x"), "length"),
    "surrogate": completion("\ud800"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_invalid_answers_are_asked_for_again(name, server, judge, tmp_path):
    bad = Action(body=BAD_ANSWERS[name])
    server.act = lambda text, attempt: bad if attempt < 2 and text == TEXTS[0] else Action()
    result = run(judge, samples_of(TEXTS[:2]), tmp_path / "journal")
    assert [row["before"] for row in result.rows] == [grades(text) for text in TEXTS[:2]]
    # another seed: at temperature 0 the same one may repeat the answer
    seeds = [r["seed"] for r in server.requests if TEXTS[0] in r["messages"][0]["content"]]
    assert seeds == [0, 1, 2]


def test_samples_without_valid_grades_are_excluded_and_counted(server, judge, tmp_path):
    bad = Action(body=completion(answer("x", style=11)))
    server.act = lambda text, attempt: bad if text == f"{TEXTS[2]}!" else Action()
    result = run(judge, samples_of(TEXTS, better=True), tmp_path / "journal")
    assert [row["id"] for row in result.rows] == [0, 1, 3, 4, 5]
    assert result.measurements["failed_samples"].value == 1
    (failure,) = result.manifest["failed"]
    assert failure["id"] == 2
    assert "style" in failure["reason"] and "11" in failure["reason"]
    assert server.attempts[f"{TEXTS[2]}!"] == 3
    # a second run asks again for that text only
    server.act = lambda text, attempt: Action()
    assert len(run(judge, samples_of(TEXTS, better=True), tmp_path / "journal").rows) == 6
    assert sum(server.attempts.values()) == 15


def test_no_valid_answer_at_all(server, judge, tmp_path):
    server.act = lambda text, attempt: Action(body=b"")
    with pytest.raises(DataError, match="none of 2 samples"):
        run(judge, samples_of(TEXTS[:2]), tmp_path / "journal")


def test_json_in_a_code_block_is_accepted():
    for content in (f"```json\n{answer('a')}\n```", f"```\n{answer('a')}```\n", answer("a")):
        assert parse_grades(Reply(content, True)) == grades("a")
    assert parse_grades(Reply(answer("a", style=7.0), True))["style"] == 7
    with pytest.raises(InvalidReply):
        parse_grades(Reply(f"```json\n{answer('a')}\n``` Anything else?", True))
    with pytest.raises(InvalidReply, match="more than once"):
        parse_grades(Reply(answer("a")[:-1] + ',"style": {"score": 9}}', True))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_errors_are_retried(status, server, judge, delays, tmp_path):
    server.act = lambda text, attempt: Action(status, b"busy") if attempt < 3 else Action()
    result = run(judge, samples_of(TEXTS[:1]), tmp_path / "journal")
    assert len(result.rows) == 1
    assert server.paid == {TEXTS[0]: 1}
    assert len(delays) == 3
    for attempt, delay in enumerate(delays):  # exponential, with a jitter in [0.5, 1]
        assert 0.5 * 2**attempt <= delay <= 2**attempt


def test_jitter_depends_on_text_and_attempt_alone(server, judge, delays, tmp_path):
    server.act = lambda text, attempt: Action(503, b"") if attempt < 1 else Action()
    run(judge, samples_of(TEXTS), tmp_path / "one")
    assert len(set(delays)) == 6
    server.attempts.clear()
    first = sorted(delays)
    delays.clear()
    run(judge, samples_of(TEXTS), tmp_path / "two")
    assert sorted(delays) == first


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "17"}, 17, 17),
        ({"Retry-After": "999999999999"}, 300, 300),  # bounded
        ({"Retry-After": "0"}, 0.5, 1),
        ({"Retry-After": "soon"}, 0.5, 1),
        ({"Retry-After": "-5"}, 0.5, 1),
    ],
)
def test_retry_after_is_respected(headers, least, most, server, judge, delays, tmp_path):
    refuse = Action(429, b"{}", headers)
    server.act = lambda text, attempt: refuse if attempt < 1 else Action()
    run(judge, samples_of(TEXTS[:1]), tmp_path / "journal")
    (delay,) = delays
    assert least <= delay <= most


def test_retry_after_as_a_date_is_relative_to_the_clock_of_the_server():
    now, later = (formatdate(seconds, usegmt=True) for seconds in (1e9, 1e9 + 40))
    assert judge_client._retry_after({"Retry-After": later, "Date": now}) == 40
    assert judge_client._retry_after({"Retry-After": now, "Date": later}) == 0
    assert judge_client._retry_after({"Retry-After": later, "Date": "today"}) is None


@pytest.mark.parametrize("action", [Action(drop=True), Action(hold=True)], ids=["drop", "hang"])
def test_dropped_connections_and_timeouts_are_retried(action, server, delays, tmp_path):
    server.act = lambda text, attempt: action if attempt < 1 else Action()
    judge = Judge(
        endpoint=endpoint(server, timeout=0.3), wait=lambda stop, seconds: delays.append(seconds)
    )
    assert len(run(judge, samples_of(TEXTS[:1]), tmp_path / "journal").rows) == 1
    assert (len(delays), server.paid) == (1, {TEXTS[0]: 1})


def test_truncated_and_oversized_responses(server, delays):
    whole = completion(answer(TEXTS[0]))
    server.act = lambda text, attempt: Action(200, whole[:50], {"Content-Length": str(len(whole))})
    prompt = f"```\n{TEXTS[0]}\n```"
    with pytest.raises((NoReply, InvalidReply)):
        endpoint(server, max_retries=0).ask(prompt, seed=0, sleep=delays.append)
    server.act = lambda text, attempt: Action(200, b" " * (1 << 21))
    with pytest.raises(InvalidReply, match="bytes"):
        endpoint(server).ask(prompt, seed=0, sleep=delays.append)
    assert delays == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_refused_requests_stop_at_once(status, server, judge, delays, tmp_path):
    body = json.dumps({"error": {"message": f"the key {KEY} is \x1b[31mwrong"}}).encode()
    server.act = lambda text, attempt: Action(status, body)
    with pytest.raises(ConfigError, match=str(status)) as caught:
        run(judge, samples_of([f"text {i}" for i in range(50)]), tmp_path / "journal")
    assert KEY not in str(caught.value) and "\x1b" not in str(caught.value)
    assert delays == []
    assert len(server.requests) <= 2  # those in flight on 2 threads


def test_an_empty_account_is_no_rate_limit(server, judge, delays, tmp_path):
    body = json.dumps({"error": {"type": "insufficient_quota", "code": "x", "message": "q"}})
    server.act = lambda text, attempt: Action(429, body.encode())
    with pytest.raises(ConfigError, match="credit"):
        run(judge, samples_of(TEXTS), tmp_path / "journal")
    assert delays == []


def test_a_server_that_is_down_stops_the_evaluation(server, judge, delays, tmp_path):
    server.act = lambda text, attempt: Action(503, b"") if text != TEXTS[0] else Action()
    with pytest.raises(NoReply, match="503"):
        run(judge, samples_of([*TEXTS, *(f"more {i}" for i in range(50))]), tmp_path / "journal")
    assert len(server.attempts) < 56


def test_one_text_without_an_answer_fails_alone(server, judge, delays, tmp_path):
    server.act = lambda text, attempt: Action(500, b"") if text == TEXTS[1] else Action()
    result = run(judge, samples_of(TEXTS), tmp_path / "journal")
    assert [f["id"] for f in result.manifest["failed"]] == [1]
    assert server.attempts[TEXTS[1]] == 7


def test_nobody_listens(tmp_path):
    lonely = ChatEndpoint(base_url="http://127.0.0.1:9/v1", model="m", max_retries=1)
    with pytest.raises(NoReply, match="2 attempts"):
        lonely.ask("hello", seed=0, sleep=lambda seconds: None)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_do_not_carry_the_key_to_another_host(status, server, judge, tmp_path):
    with serve_judge() as thief:
        server.act = lambda text, attempt: Action(status, b"", {"Location": thief.url})
        with pytest.raises(ConfigError, match="redirects to 127.0.0.1"):
            run(judge, samples_of(TEXTS[:1]), tmp_path / "journal")
        assert thief.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/v1",
        "example.org/v1",
        "https://",
        "https://user:hunter2@example.org/v1",
        "https://example.org/v1?key=hunter2",
        "http://example.org:99999/v1",
        "http://example.org/v1 x",
        "http://example.org/v1\r\nHost: thief",
    ],
)
def test_only_web_addresses_without_secrets(url):
    with pytest.raises(ConfigError, match="--base-url") as caught:
        ChatEndpoint(base_url=url, model="m")
    assert "hunter2" not in str(caught.value)


def test_keys_that_cannot_be_sent_are_not_shown():
    for key in ("sk-a\r\nX: y", "sk-ä", "sk a"):
        with pytest.raises(ConfigError) as caught:
            ChatEndpoint(base_url="https://example.org", model="m", key=key)
        assert key not in str(caught.value)
    assert KEY not in repr(ChatEndpoint(base_url="https://example.org", model="m", key=KEY))


def test_unencrypted_keys_are_noticed():
    def unencrypted(url, key=KEY):
        return ChatEndpoint(base_url=url, model="m", key=key).sends_key_unencrypted

    assert unencrypted("http://node12:8000/v1")
    assert not unencrypted("http://node12:8000/v1", key=None)
    assert not unencrypted("https://node12/v1")
    assert not unencrypted("http://localhost:8000/v1")


def test_a_torn_or_damaged_journal_loses_only_what_is_damaged(server, judge, tmp_path):
    path = tmp_path / "journal"
    run(judge, samples_of(TEXTS), path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    damaged = [b"[1, 2]\n", lines[0].replace(b'"style": ', b'"style": 9'), lines[1][:-30]]
    path.write_bytes(b"".join([*lines[2:], *damaged]))
    run(judge, samples_of(TEXTS), path)
    assert sorted(server.paid.values()) == [1, 1, 1, 1, 2, 2]
    run(judge, samples_of(TEXTS), path)  # what was written after the torn line is read
    assert sorted(server.paid.values()) == [1, 1, 1, 1, 2, 2]


def test_two_processes_cannot_use_one_journal(tmp_path):
    path = tmp_path / "journal"
    with open_journal(path), pytest.raises(ConfigError, match="in use"), open_journal(path):
        pass
    with pytest.raises(DataError, match="folder"), open_journal(tmp_path):
        pass


def test_an_interruption_keeps_the_answers_received(server, judge, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with open_journal(tmp_path / "journal") as journal:
        with pytest.raises(KeyboardInterrupt):
            judge.grade(judge.pending(samples_of(TEXTS), journal), journal, interrupt)
        kept = len(journal.answers)
    assert 1 <= kept <= 6
    run(judge, samples_of(TEXTS), tmp_path / "journal")
    assert server.paid == dict.fromkeys(TEXTS, 1)


def test_waiting_for_a_retry_ends_with_the_evaluation(server, tmp_path):
    """Nobody waits five minutes for a rate limit after Ctrl-C."""
    limited, waiting = Action(429, b"", {"Retry-After": "300"}), Event()
    server.act = lambda text, attempt: limited if text == TEXTS[0] else Action()

    def wait(stop, seconds):
        waiting.set()
        assert stop.wait(60)

    def interrupt(done, total):
        assert waiting.wait(60)
        raise KeyboardInterrupt

    judge = Judge(endpoint=endpoint(server), concurrency=2, wait=wait)
    with open_journal(tmp_path / "journal") as journal, pytest.raises(KeyboardInterrupt):
        judge.grade(judge.pending(samples_of(TEXTS), journal), journal, interrupt)
    assert server.attempts[TEXTS[0]] == 1


def test_samples_are_read_as_the_commands_write_them(tmp_path):
    first = write(tmp_path / "a.jsonl", ["a", "b"], tokens=[1], manifest={})
    second = write(tmp_path / "b.jsonl", ["c", "d"])
    assert read_samples(first) == [(0, "a", None), (1, "b", None)]
    assert read_samples(first, second) == [(0, "a", "c"), (1, "b", "d")]
    corrected = write(tmp_path / "c.jsonl", ["new"], original="old", id="x1")
    assert read_samples(corrected) == [("x1", "old", "new")]
    named = write(tmp_path / "d.jsonl", ["e"], id=7)
    assert read_samples(write(tmp_path / "e.jsonl", ["d"]), named) == [(7, "d", "e")]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "no samples"),
        (b"text\n", "line 1 is not JSON"),
        (b'{"text": "a"}\n{"text": 3}\n', "line 2"),
        (b'{"text": "a"}\n["b"]\n', "line 2"),
        (b'{"txt": "a"}\n', "text"),
        (b'{"text": "a", "id": 1.5}\n', "id"),
        (b'{"text": "a", "id": 1}\n{"text": "b", "id": 1}\n', "unique"),
        (b'{"text": "a", "original": "b"}\n{"text": "b"}\n', "original"),
        (b'{"text": "\\ud800"}\n', "surrogate"),
        (b"\xff\xfe\n", "not JSON"),
    ],
)
def test_damaged_samples_are_named(content, word, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=word):
        read_samples(tmp_path / "a.jsonl")


def test_files_that_do_not_belong_together(tmp_path, monkeypatch):
    first, second = write(tmp_path / "a", ["a", "b"]), write(tmp_path / "b", ["a"])
    with pytest.raises(DataError, match="2 and 1 lines"):
        read_samples(first, second)
    with pytest.raises(DataError, match="same `id`"):
        read_samples(write(tmp_path / "c", ["a"], id=1), write(tmp_path / "d", ["a"], id=2))
    with pytest.raises(DataError, match="nothing of that name"):
        read_samples(tmp_path / "nothing")
    monkeypatch.setenv("GIDD_MAX_DOCUMENT_BYTES", "10")
    with pytest.raises(DataError, match="GIDD_MAX_DOCUMENT_BYTES"):
        read_samples(first)


@pytest.fixture
def command(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    before = write(tmp_path / "before.jsonl", TEXTS)
    after = write(tmp_path / "after.jsonl", [f"{text}!" for text in TEXTS])
    out = tmp_path / "out" / "judge.json"
    words = ["eval", "judge", str(before), str(after), "--base-url", server.url, "--out", str(out)]
    return [*words, "--model", "m"]


def test_command(server, command, tmp_path, capfd):
    main([*command, "--yes", "--price-input", "2", "--price-output", "10"])
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(grades(""))
    assert "+" in out and "**" in out
    # 12 prompts of 1932 characters and texts of 16 or 17: 5847 tokens of 4 characters
    characters = sum(2 * len(JUDGE_PROMPT) + 2 * len(text) + 1 for text in TEXTS)
    tokens = -(-characters // 4)
    assert "12 requests to m" in err
    assert f"{tokens:,} input tokens" in err and "12,288 output tokens" in err
    assert f"{(2 * tokens + 10 * 12_288) / 1e6:.2f}" in err
    result = EvaluationResult.read(tmp_path / "out" / "judge.json")
    assert result.kind == "judge" and len(result.rows) == 6
    assert set(result.manifest["samples"]) == {"before", "after"}
    main([*command, "--json"])  # nothing is left to pay for: no confirmation
    assert json.loads(capfd.readouterr().out)["rows"] == list(result.rows)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in out + err
    assert server.paid.total() == 12


def test_nothing_is_sent_without_confirmation(server, command, capfd, monkeypatch):
    with pytest.raises(SystemExit):
        main(command)
    assert "--yes" in capfd.readouterr().err
    answers = iter(["n\n", "\n", "", "y\n"])
    monkeypatch.setattr("sys.stdin", Terminal(answers))
    monkeypatch.setattr("sys.stderr", sys.stderr)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for _ in range(3):
        with pytest.raises(SystemExit):
            main(command)
        assert server.requests == []
    main(command)
    assert server.paid.total() == 12


class Terminal:
    def __init__(self, lines):
        self.readline = lines.__next__

    def isatty(self):
        return True


def test_a_server_that_sends_the_key_back(server, command, tmp_path, capfd):
    echo = completion(answer("x").replace("so it is", KEY), model=f"model of {KEY}")
    server.act = lambda text, attempt: Action(body=echo)
    main([*command, "--yes"])
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    server.act = lambda text, attempt: Action(401, json.dumps({"error": {"message": KEY}}).encode())
    with pytest.raises(SystemExit):
        main([*command, "--yes", "--model", "other"])
    assert KEY not in "".join(capfd.readouterr())


def test_mistakes(command, capfd, monkeypatch):
    def message(*words):
        with pytest.raises(SystemExit):
            main([*command, "--yes", *words])
        return capfd.readouterr().err

    assert "--concurrency" in message("--concurrency", "0")
    assert "--timeout" in message("--timeout", "0")
    assert "--price-input" in message("--price-input", "-1")
    assert KEY not in message("--api-key-variable", KEY)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY" in message("--base-url", "https://api.openai.com/v1")


def test_a_server_without_keys(server, command, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    main([*command, "--yes"])
    assert set(server.keys) == {None}


def test_a_killed_evaluation_pays_for_no_answer_twice(server, command, capfd, tmp_path):
    """`kill -9` in the middle, then the same command again.

    What cannot be avoided: an answer that the server has sent, or works on, when the process is
    killed may be paid for and not recorded. So the process is killed while both of its requests
    have arrived and none of their answers has been sent. A thread sends its next request only after
    its last answer is on disk: everything sent before is therefore recorded.
    """
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
    assert num_paid in (5, 6)  # two threads
    journal = tmp_path / "out" / "judge.json.journal.jsonl"
    assert len(journal.read_bytes().splitlines()) == num_paid
    server.act = lambda text, attempt: Action()
    main([*command, "--yes"])
    assert f"{12 - num_paid} requests to m" in capfd.readouterr().err
    everything = [*TEXTS, *(f"{text}!" for text in TEXTS)]
    assert server.paid == dict.fromkeys(everything, 1)
