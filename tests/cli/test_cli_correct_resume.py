"""`gidd correct` that is interrupted or killed: the next run resumes, with the same bytes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.small_proofreader import LETTER, cut_into_small_parts, write_proofreader

from gidd.cli import correct_journal, main
from gidd.cli.correct_journal import TextJournal, open_text_journal
from gidd.cli.model_options import ModelOptions
from gidd.pipeline import correct, from_pretrained
from gidd.proofreading.edits import Alternative, JudgedText, TextEdit
from gidd.proofreading.parts import TextPart

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

WORDS = ["--error-rate", "0.05"]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_proofreader(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _proofreader(pipe, monkeypatch, tmp_path):
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.setattr(correct, "parts_of", correct.parts_of)
    cut_into_small_parts()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text(LETTER)


@pytest.fixture
def judged(monkeypatch):
    """The starts of the parts that are judged; a negative count interrupts."""
    real, starts = correct.TextCorrector.correct_part, []

    def count(self, jobs, text, part, rate):
        if len(starts) == judge.limit:
            raise KeyboardInterrupt
        starts.append(part.start)
        return real(self, jobs, text, part, rate)

    class judge:  # noqa: N801
        limit = -1

        @staticmethod
        def up_to(limit: int) -> None:
            starts.clear()
            judge.limit = limit

        parts = starts

    monkeypatch.setattr(correct.TextCorrector, "correct_part", count)
    return judge


def gidd(capsys, *words) -> tuple[int, str, str]:
    code = 0
    try:
        main(["correct", *words])
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def journals() -> list[Path]:
    return sorted(Path("cache/gidd/correct").glob("*"))


def test_an_interrupted_correction_resumes_and_gives_the_same_bytes(capsys, judged):
    words = ["letter.txt", *WORDS]
    judged.up_to(-1)
    code, expected, err = gidd(capsys, *words)
    number = len(judged.parts)
    assert code == 0
    assert number > 3
    assert journals() == []
    for limit in (2, 1):
        judged.up_to(limit)
        code, out, err = gidd(capsys, *words)
        assert (code, out) == (130, "")
        assert "is done and kept. The same command resumes." in err
        assert "stopped" in err
        (journal,) = journals()
        if os.name == "posix":
            assert journal.stat().st_mode & 0o777 == 0o600
    judged.up_to(-1)
    code, out, err = gidd(capsys, *words)
    assert (code, out) == (0, expected)
    assert "resuming an interrupted correction at " in err
    assert len(judged.parts) == number - 3
    assert journals() == []


def test_the_estimate_is_kept(capsys, judged, monkeypatch):
    judged.up_to(1)
    assert gidd(capsys, "letter.txt")[0] == 130
    monkeypatch.setattr(correct.TextCorrector, "estimate", None)  # another estimate would fail
    judged.up_to(-1)
    code, _, err = gidd(capsys, "letter.txt")
    assert code == 0
    assert "estimated " in err


def test_other_texts_and_options_do_not_resume(capsys, judged):
    judged.up_to(2)
    gidd(capsys, "letter.txt", *WORDS)
    for text, words in (
        (LETTER, ["--error-rate", "0.06"]),
        (LETTER, [*WORDS, "--min-confidence", "0.5"]),
        (LETTER, [*WORDS, "--protect", "union"]),
        (LETTER, [*WORDS, "--channel", "keyboard"]),
        (LETTER + "more", WORDS),
    ):
        Path("letter.txt").write_text(text)
        judged.up_to(1)
        _, _, err = gidd(capsys, "letter.txt", *words)
        assert "resuming" not in err
    assert len(journals()) == 6


def test_files_that_were_written_are_not_corrected_again(capsys, judged):
    """The second run would otherwise correct a corrected text: another result."""
    names = ["a.txt", "b.txt"]
    for name in names:
        Path(name).write_text(LETTER.replace("itself", f"itself in {name[0]}"))
    before = [Path(name).read_text() for name in names]
    judged.up_to(-1)
    expected = [json.loads(gidd(capsys, name, *WORDS, "--jsonl")[1])["text"] for name in names]
    total = len(judged.parts)
    judged.up_to(total // 2 + 1)
    assert gidd(capsys, *names, *WORDS, "--in-place")[0] == 130
    assert [Path(name).read_text() for name in names] == [expected[0], before[1]]
    judged.up_to(-1)
    code, _, err = gidd(capsys, *names, *WORDS, "--in-place")
    assert code == 0
    assert "a.txt is corrected already" in err
    assert [Path(name).read_text() for name in names] == expected
    assert len(judged.parts) == total // 2 - 1
    assert journals() == []


PARTS = [TextPart(0, 10, 0, 10), TextPart(10, 20, 0, 20)]
LINE = {"kind": "part", "index": 0, "calls": 3, "edits": [[0, "ab", "ba", [["ab", 0.2]]]]}
DAMAGE = [
    {**LINE, "index": 2},
    {**LINE, "index": -1},
    {**LINE, "calls": -3},
    {**LINE, "calls": 1e400},
    {**LINE, "edits": [[0, "xy", "ba", []]]},
    {**LINE, "edits": [[9, "ba", "", []]]},
    {**LINE, "edits": [[4, "ab", "", []], [2, "ab", "", []]]},
    {**LINE, "edits": [[0, "ab", "b" * 5000, []]]},
    {**LINE, "edits": [[0, "ab", 3, []]]},
    {**LINE, "edits": [[0, "ab", "ba", [["ab", 1.5]]]]},
    {**LINE, "edits": [[0, "ab", "ba", [["ab", 0.5]] * 300]]},
    {**LINE, "edits": [[0, "ab"]]},
    {"kind": "noise", "error_rate": "0.1", "low": 0, "high": 1, "time": 0, "calls": 1},
    {"kind": "noise", "error_rate": 0.1},
    {"kind": "choice", "start": 99, "new": None},
    {"kind": "other"},
    [1],
    None,
]


@pytest.mark.parametrize("damage", [*map(json.dumps, DAMAGE), "{", "[" * 100_000, "\0", '{"kind'])
def test_invalid_lines_and_all_after_them_are_ignored(tmp_path, damage):
    text, path = "ab" * 10, tmp_path / "journal"
    end = "" if damage == '{"kind' else "\n" + json.dumps(LINE | {"index": 1}) + "\n"
    path.write_text(json.dumps(LINE) + "\n" + damage + end)
    with open_text_journal(path, text, PARTS) as journal:
        edit = TextEdit(0, "ab", "ba", (Alternative("ab", 0.2),))
        assert journal.parts == {0: JudgedText([edit], 3)}
        assert (journal.noise, journal.choices, journal.is_finished) == (None, {}, False)
        journal.add_part(1, JudgedText([], 7))
    with open_text_journal(path, text, PARTS) as journal:
        assert journal.num_characters == 20
        assert journal.parts[1] == JudgedText([], 7)


def test_a_journal_that_cannot_be_kept_is_said_and_no_reason_to_stop(capsys, judged):
    Path("cache").touch()
    judged.up_to(-1)
    code, out, err = gidd(capsys, "letter.txt", *WORDS)
    assert code == 0
    assert "people" in out
    assert "finished parts are not kept for a later run" in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of Unix")
def test_two_processes_do_not_share_a_journal(tmp_path, capsys):
    path = tmp_path / "journal"
    with open_text_journal(path, "ab" * 10, PARTS) as first:
        with open_text_journal(path, "ab" * 10, PARTS) as second:
            assert not second.is_kept
            second.add_part(0, JudgedText([], 1))
        first.add_part(1, JudgedText([], 1))
    assert "another process" in capsys.readouterr().err
    with open_text_journal(path, "ab" * 10, PARTS) as journal:
        assert list(journal.parts) == [1]


def test_old_journals_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(correct_journal, "_MAX_JOURNALS", 3)
    for i in range(5):
        path = tmp_path / f"{i}.jsonl"
        path.touch()
        os.utime(path, (time.time() - 60 * i,) * 2)
    os.utime(tmp_path / "1.jsonl", (1, 1))
    with open_text_journal(tmp_path / "new.jsonl", "", ()):
        assert {path.name for path in tmp_path.glob("*.jsonl")} == {
            *("0.jsonl", "2.jsonl", "3.jsonl", "new.jsonl")
        }


def test_a_full_disk_ends_the_journal_only(capsys):
    class Full:
        def seek(self, _):
            pass

        def readline(self, _):
            return b""

        truncate = seek

        def write(self, _):
            raise OSError(28, "No space left on device")

    journal = TextJournal("ab" * 10, PARTS, Full())
    for index in (0, 1):
        journal.add_part(index, JudgedText([], 1))
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert list(journal.parts) == [0, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.long)])
def test_killed_at_random_moments_a_file_is_the_old_or_the_new_one(kills):
    command = [sys.executable, "-m", "support.kill_correct", "--kills", str(kills), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == kills
    assert result["other_content"] == 0
    assert result["same_bytes"]
    assert result["leftovers"] == []
