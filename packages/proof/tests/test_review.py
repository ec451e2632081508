"""`gidd correct --interactive`: keys, decisions that are kept, and a real terminal."""

import io
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gidd.cli.correct_interactive import Review
from gidd.cli.correct_journal import TextJournal
from gidd.cli.correct_progress import CorrectProgress
from gidd.proofreading.edits import Alternative, TextEdit
from rich.console import Console
from support.small_proofreader import LETTER, write_proofreader

from gidd.cli import correct_interactive, main
from gidd.cli.model_options import ModelOptions
from gidd.pipeline import from_pretrained
from gidd.pipeline.correct import TextCorrector

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

TEXT = "to the peopel\nof teh union"
EDITS = [
    TextEdit(
        7,
        "peopel",
        "people",
        tuple(map(Alternative, ["people", "peopel", "pope"], [0.9, 0.08, 0.02])),
    ),
    TextEdit(17, "teh", "teh", tuple(map(Alternative, ["teh", "the"], [0.7, 0.3]))),
]


def review(keys: str, lines: tuple[str, ...] = (), journal: TextJournal | None = None):
    """Return the decisions, and whether all places were shown."""
    typed, entered = iter(keys), iter(lines)
    journal = journal or TextJournal(TEXT, ())
    found = Review(
        "letter.txt",
        TEXT,
        read_key=lambda: next(typed),
        read_line=lambda start: next(entered),
    ).run(EDITS, journal)
    assert next(typed, None) is None
    return journal.choices, found


@pytest.mark.parametrize(
    ("keys", "lines", "choices", "is_complete"),
    [
        ("aa", (), {7: "people", 17: "the"}, True),
        ("rr", (), {7: "peopel", 17: "teh"}, True),
        ("32", (), {7: "pope", 17: "the"}, True),
        ("xA9\x1b1s", (), {7: "people", 17: None}, True),  # keys without a meaning are ignored
        ("eer", ("", "populace"), {7: "populace", 17: "teh"}, True),
        ("aq", (), {7: "people"}, False),
        ("q", (), {}, False),
    ],
)
def test_keys(keys, lines, choices, is_complete):
    assert review(keys, lines) == (choices, is_complete)


def test_a_place_is_shown_with_its_context_and_alternatives(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    review("rr")
    err = capsys.readouterr().err
    assert "letter.txt:1  1 of 2" in err
    assert "  to the [-peopel-]\n" in err
    assert "  1 people  90%\n  2 peopel   8%  as it is\n  3 pope     2%\n" in err
    assert "letter.txt:2  2 of 2" in err
    assert "  of [-teh-] union\n" in err


def test_decisions_are_not_asked_again():
    journal = TextJournal(TEXT, ())
    journal.add_choice(EDITS[0], None)
    assert review("a", journal=journal) == ({7: None, 17: "the"}, True)


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_proofreader(tmp_path_factory.mktemp("model")))


@pytest.fixture
def letter(pipe, monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.setattr("gidd.cli.correct.require_terminal", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "letter.txt"
    path.write_text(LETTER)
    return path


def press(monkeypatch, keys: str) -> None:
    typed = iter(keys)
    monkeypatch.setattr(correct_interactive, "press_key", lambda: next(typed, ""))


def test_a_review_resumes_and_the_file_is_written_at_its_end(capsys, letter, pipe, monkeypatch):
    edits = pipe.correct(LETTER, error_rate=0.05).edits
    assert len(edits) >= 3
    words = ["correct", str(letter), "--error-rate", "0.05", "--interactive", "--in-place"]
    press(monkeypatch, "rq")
    main(words)
    assert f"1 of {len(edits)} places are decided and kept" in capsys.readouterr().err
    assert letter.read_text() == LETTER
    assert len(list(letter.parent.glob("cache/gidd/correct/*"))) == 1
    monkeypatch.setattr(TextCorrector, "correct_part", None)  # nothing is judged again
    press(monkeypatch, "s" + "a" * (len(edits) - 2))
    main(words)
    err = capsys.readouterr().err
    assert "resuming an interrupted correction at 100%" in err
    assert re.search(rf"\b{len(edits) - 2} changes?, 2 left for you", err)
    assert letter.read_text() != LETTER
    assert letter.read_text()[: edits[2].start] == LETTER[: edits[2].start]
    assert not list(letter.parent.glob("cache/gidd/correct/*"))


def test_without_in_place_the_text_is_printed(capsys, letter, pipe, monkeypatch):
    press(monkeypatch, "r" * 99)
    main(["correct", str(letter), "--error-rate", "0.05", "--interactive"])
    assert capsys.readouterr().out == LETTER


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_keys_of_a_real_terminal(tmp_path):
    """Bars, questions and single keys; the terminal is left as it was."""
    import pty
    import termios

    write_proofreader(tmp_path / "model")
    (tmp_path / "letter.txt").write_text(LETTER)
    words = ["correct", "letter.txt", "--model", "model", "--interactive", "--in-place"]
    environment = os.environ | {
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "LINES": "24",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    parent, child = pty.openpty()
    before = termios.tcgetattr(child)
    process = subprocess.Popen(
        [sys.executable, "-m", "gidd.cli", *words],
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
        cwd=tmp_path,
    )
    seen, asked, deadline = b"", 0, time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([parent], [], [], 0.1)[0]:
            seen += os.read(parent, 65536)
        if seen.count(b"q quit") > asked:
            asked += 1
            os.write(parent, b"a")
    process.kill()
    process.wait()
    assert termios.tcgetattr(child) == before
    os.close(child)
    os.close(parent)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert process.returncode == 0, text
    assert "estimating" in text
    assert "correcting" in text
    assert asked > 1
    assert "people" in (tmp_path / "letter.txt").read_text()


def test_the_time_left_is_that_of_the_remaining_characters():
    """10 s for an estimate, 5 s for each 100 characters: 30 s and one estimate are left."""
    now = 0.0
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=40, legacy_windows=False)
    progress = CorrectProgress(2, 1000, console=console, clock=lambda: now)
    with progress.estimating() as report:
        now = 5.0
        report(7, 14)
        now = 10.0
        report(14, 14)
    with progress.correcting(200) as report:  # known from an earlier run
        for _ in range(2):
            now += 5
            report(100)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", shown) if line]
    assert max(map(len, lines)) <= 40
    assert "…" not in shown
    assert lines[-1].startswith("correcting  40%")
    assert lines[-1].endswith("0:00:40 left")
