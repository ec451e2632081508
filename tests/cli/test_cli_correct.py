"""`gidd correct`: texts that it reads, what it prints, and mistakes of a user."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from support.small_model import write_model
from support.small_proofreader import LETTER, write_proofreader

from gidd.cli import main
from gidd.cli.correct_view import line_starts, percent, place_of
from gidd.cli.model_options import ModelOptions
from gidd.pipeline import from_pretrained

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

RATE = ["--error-rate", "0.05"]
WRONG = {"peopel": "people", "sattes": "states"}
"""Mistakes that even a network with random weights fixes, given a list of words."""


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_proofreader(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _proofreader(pipe, monkeypatch, tmp_path):
    """Every command uses the small model, with journals in a folder of the test."""
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def letter(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_bytes(("\ufeff" + LETTER.replace("\n", "\r\n") + "1790: 🙂\tשלום\r\n").encode())
    path.chmod(0o640)
    return path


def gidd(capsys, *words) -> tuple[str, str]:
    main(["correct", *map(str, words)])
    captured = capsys.readouterr()
    return captured.out, captured.err


def spliced(text: str, edits: list[dict]) -> str:
    out, end = "", 0
    for edit in edits:
        assert end <= edit["start"]
        assert text[edit["start"] : edit["stop"]] == edit["old"]
        out += text[end : edit["start"]] + edit["new"]
        end = edit["stop"]
    return out + text[end:]


def test_a_pipe_gets_the_text_and_stderr_the_figures(capsys, letter):
    before = letter.read_bytes()
    out, err = gidd(capsys, letter, *RATE)
    for old, new in WRONG.items():
        assert old not in out
        assert new in out
    assert out.startswith("\ufeffthe opp")
    assert out.endswith("\r\n1790: 🙂\tשלום\r\n")
    figures = (
        r"gidd: 5.0% wrong as given, \d+ changes, \d+ left for you, \d+ forward passes, \d+ s\n"
    )
    assert re.fullmatch(figures, err)
    assert letter.read_bytes() == before
    assert not os.path.exists("cache")  # a text of one part leaves nothing behind


def test_the_error_rate_is_estimated(capsys, letter, pipe):
    out, err = gidd(capsys, letter, "--jsonl")
    row = json.loads(out)
    expected = pipe.correct(letter.read_bytes().decode())
    assert row["error_rate"] == expected.error_rate
    assert row["noise_level"]["low"] <= row["error_rate"] <= row["noise_level"]["high"]
    assert (row["text"], row["calls"]) == (expected.text, expected.calls)
    assert re.search(r"estimated \d+\.\d% wrong \(\d+\.\d-\d+\.\d%\), \d+ changes?, ", err)


def test_in_place_changes_what_the_edits_say(capsys, letter):
    text = letter.read_bytes().decode()
    words = [*RATE, "--protect", "[0-9]+", "--protect", "peopel of"]
    row = json.loads(gidd(capsys, letter, *words, "--jsonl")[0])
    assert (row["file"], row["original"]) == (str(letter), text)
    assert (row["manifest"]["task"], row["manifest"]["method"]) == ("correct", "words")
    link = letter.with_name("link")
    link.symlink_to(letter)
    out, err = gidd(capsys, link, *words, "--in-place")
    assert out == ""
    changes = sum(edit["change"] for edit in row["edits"])
    assert f" {changes} change" in err
    assert letter.read_bytes() == spliced(text, row["edits"]).encode() == row["text"].encode()
    assert "peopel of" in row["text"]
    assert link.is_symlink()
    assert letter.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir()) == ["letter.txt", "link"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="root alone gives files away")
def test_in_place_keeps_owner_and_group(capsys, letter):
    """And no right to act as the owner: whoever was trusted with it wrote another content."""
    os.chown(letter, 65534, 65533)
    letter.chmod(0o6750)
    before = letter.read_bytes()
    gidd(capsys, letter, *RATE, "--in-place")
    assert letter.read_bytes() != before
    found = letter.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (65534, 65533, 0o750)


def test_a_patch_applies(capsys, letter, tmp_path):
    corrected = gidd(capsys, letter, *RATE)[0]
    patch = tmp_path / "letter.patch"
    patch.write_bytes(gidd(capsys, letter, *RATE, "--diff")[0].encode())
    command = ["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", "-p1", str(patch)]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert letter.read_bytes() == corrected.encode()


def test_suggestions_are_json_lines_with_places_in_characters(capsys, letter):
    before = letter.read_bytes()
    rows = [json.loads(line) for line in gidd(capsys, letter, *RATE, "--suggest")[0].splitlines()]
    assert letter.read_bytes() == before
    lines = before.decode().split("\n")
    for row in rows:
        assert set(row) == {
            *("file", "start", "stop", "line", "column", "old", "new", "change", "alternatives")
        }
        begin = row["column"] - 1
        assert lines[row["line"] - 1][begin : begin + len(row["old"])] == row["old"]
        assert row["change"] == (row["old"] != row["new"])
        probabilities = [each["probability"] for each in row["alternatives"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)
        assert row["old"] in [each["text"] for each in row["alternatives"]]
    assert WRONG.items() <= {row["old"]: row["new"] for row in rows}.items()
    assert spliced(before.decode(), rows) == gidd(capsys, letter, *RATE)[0]


def test_lines_and_columns_begin_at_one():
    starts = line_starts("ab\n\ncd")
    assert starts == [0, 3, 4]
    assert [place_of(starts, i) for i in (0, 2, 3, 5)] == [(1, 1), (1, 3), (2, 1), (3, 2)]
    assert [percent(p) for p in (0.9999, 1.0, 0.5, 0.001)] == ["99%", "100%", "50%", "0%"]


def test_min_confidence_leaves_more_to_the_user(capsys, letter):
    few = json.loads(gidd(capsys, letter, *RATE, "--min-confidence", "1", "--jsonl")[0])
    assert not any(edit["change"] for edit in few["edits"])
    assert few["text"] == few["original"]
    assert WRONG.keys() <= {edit["old"] for edit in few["edits"]}


def test_channels(capsys, letter):
    row = json.loads(gidd(capsys, letter, *RATE, "--channel", "keyboard", "--jsonl")[0])
    assert row["manifest"]["channel"] == "keyboard"


def test_files_folders_patterns_and_standard_input(capsys, tmp_path, monkeypatch):
    names = ["notes/b.md", "notes/a.txt", "notes/sub/c.TXT", "other.text"]
    for name in [*names, "notes/.hidden.txt", "notes/.git/d.txt", "notes/e.html"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"peopel {len(name)}")
    (tmp_path / "notes" / "empty.txt").touch()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"peopel")))
    words = ["other.text", "-", "notes", "notes/*.md", "./notes/a.txt"]
    out, err = gidd(capsys, *words, *RATE, "--jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["file"].replace("\\", "/") for row in rows] == [
        "other.text",
        "standard input",
        *("notes/a.txt", "notes/b.md", "notes/sub/c.TXT"),
    ]
    assert "notes/empty.txt is empty: skipped" in err.replace("\\", "/")
    assert err.splitlines()[-1].startswith("gidd: 5 files: 5 changes, 0 left")
    out, _ = gidd(capsys, "notes", *RATE, "--diff")
    assert re.findall(r"^\+\+\+ b/(.*)", out, re.M) == names[1::-1] + names[2:3]
    gidd(capsys, "notes", "*.text", *RATE, "--in-place")
    assert {(tmp_path / name).read_text()[:6] for name in names} == {"people"}
    assert os.listdir("cache/gidd/correct") == []


def test_a_terminal_gets_changed_lines_with_confidences(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "60")):
        monkeypatch.setenv(name, value)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the union\nthe peopel of the union\x1b[2J\n")
    out, _ = gidd(capsys, "a.txt", "b.txt", *RATE)
    assert "\x1b[2J" not in out
    assert "\x1b[9;31mpeopel\x1b[0m" in out
    assert "\x1b[1;32mpeople\x1b[0m" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert re.search(r"^a\.txt\n *2 │ .*peopel→people \d\d% of the union", plain, re.M)
    assert "b.txt" in plain
    assert "1 │" not in plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "FILE"),
        (["a.txt", "--text", "b"], "FILE"),
        (["-", "-"], "- at most once"),
        (["not-there.txt"], "not-there.txt cannot be read: No such file"),
        (["nothing*.txt"], "no file matches nothing*.txt"),
        (["empty"], "empty has no files .txt or .md"),
        (["MODEL", "letter.txt"], "gidd correct FILE --model"),
        (["--text", "b", "--in-place"], "--in-place"),
        (["--text", "b", "--protect", "("], "--protect must be a regular expression, got '('"),
        (["--text", ""], "empty"),
        (["latin.txt"], "latin.txt must be UTF-8"),
        (["letter.txt", "latin.txt", "--jsonl"], "latin.txt must be UTF-8"),
        (["letter.txt", "same.txt"], "--in-place, --diff"),
        (["letter.txt", "--suggest", "--in-place"], "--suggest only prints"),
        (["letter.txt", "--diff", "--jsonl"], "exclude each other"),
        (["letter.txt", "--interactive"], "--interactive needs a terminal"),
        (["letter.txt", "--channel", "qwertz"], "keyboard, ocr or a file"),
        (["letter.txt", "--error-rate", "1"], "--error-rate must be a number in [0, 1)"),
        (["letter.txt", "--min-confidence", "2"], "--min-confidence must be a number in [0, 1]"),
    ],
)
def test_mistakes_end_in_one_message(capsys, letter, tmp_path, words, message):
    (tmp_path / "latin.txt").write_bytes("Ä".encode("latin-1"))
    (tmp_path / "same.txt").write_text("union")
    (tmp_path / "empty").mkdir()
    model = write_model(tmp_path / "model") if "MODEL" in words else None
    with pytest.raises(SystemExit) as stopped:
        main(["correct", *(str(model) if word == "MODEL" else word for word in words)])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_model_of_other_tokens_corrects_them(capsys, letter, tmp_path, monkeypatch):
    tokens = from_pretrained(write_model(tmp_path / "tokens"))
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: tokens)
    row = json.loads(gidd(capsys, letter, "--error-rate", "0.4", "--jsonl")[0])
    assert row["manifest"]["method"] == "tokens"
    assert any(edit["change"] for edit in row["edits"])
    assert spliced(row["original"], row["edits"]) == row["text"]
    with pytest.raises(SystemExit):
        main(["correct", str(letter), "--channel", "ocr"])
    assert "a channel needs a model whose tokens are characters" in capsys.readouterr().err


def test_a_text_that_is_protected_stays(capsys):
    out, err = gidd(capsys, "--text", "teh union", "--protect", ".*")
    assert out == "teh union"
    assert "0 changes, 0 left for you, 0 forward passes" in err
