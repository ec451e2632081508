"""`gidd correct`: texts that it reads, what it prints and writes, and mistakes of a user."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from support.resources import largest_file
from support.small_model import TEXT, write_model

from gidd.cli import main
from gidd.cli.correct import line_starts, percent, place_of
from gidd.cli.model_options import ModelOptions
from gidd.pipeline import from_pretrained

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

OPTIONS = ["--model", "models/small", "--error-rate", "0.4"]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    return from_pretrained(write_model(tmp_path_factory.mktemp("model")), device="cpu")


@pytest.fixture(autouse=True)
def _small_model(pipe, monkeypatch, tmp_path):
    monkeypatch.setattr(ModelOptions, "load", lambda self, name: pipe)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def letter(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    path.chmod(0o640)
    return path


def correct(capsys, *words) -> tuple[str, str]:
    main(["correct", *map(str, words), *OPTIONS])
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
    out, err = correct(capsys, letter)
    assert out.encode() != before
    assert out.count("\r\n") == before.count(b"\r\n")
    figures = (
        r"gidd: 40.0% wrong as given, \d+ changes, \d+ left for you, \d+ forward passes, \d+ s\n"
    )
    assert re.fullmatch(figures, err)
    assert letter.read_bytes() == before


@pytest.mark.slow
def test_the_error_rate_is_estimated(capsys, pipe):
    main(["correct", "--text", TEXT, "--model", "small", "--jsonl"])
    captured = capsys.readouterr()
    row, expected = json.loads(captured.out), pipe.correct(TEXT)
    assert row["error_rate"] == expected.error_rate
    assert row["noise_level"]["low"] <= row["error_rate"] <= row["noise_level"]["high"]
    assert (row["text"], row["forward_passes"]) == (expected.text, expected.forward_passes)
    assert re.search(r"estimated \d+\.\d% wrong \(\d+\.\d-\d+\.\d%\), \d+ change", captured.err)


def test_in_place_changes_what_the_edits_say(capsys, letter):
    text = letter.read_bytes().decode()
    words = ["--protect", "[0-9]+", "--protect", re.escape(text[10:30])]
    row = json.loads(correct(capsys, letter, *words, "--jsonl")[0])
    assert (row["file"], row["original"]) == (str(letter), text)
    assert row["manifest"]["task"] == "correct"
    link = letter.with_name("link")
    link.symlink_to(letter)
    out, err = correct(capsys, link, *words, "--in-place")
    assert out == ""
    assert f" {sum(edit['change'] for edit in row['edits'])} change" in err
    assert letter.read_bytes() == spliced(text, row["edits"]).encode() == row["text"].encode()
    assert row["text"] != text and text[10:30] in row["text"]
    assert link.is_symlink()
    assert letter.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir()) == ["letter.txt", "link"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="root alone gives files away")
def test_in_place_keeps_owner_and_group(capsys, letter):
    """And no right to act as the owner: whoever was trusted with it wrote another content."""
    os.chown(letter, 65534, 65533)
    letter.chmod(0o6750)
    correct(capsys, letter, "--in-place")
    found = letter.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (65534, 65533, 0o750)


@pytest.mark.skipif(sys.platform == "win32", reason="needs the limits of Unix")
def test_a_full_disk_names_the_file_prints_the_text_and_leaves_nothing(capsys, letter):
    before = letter.read_bytes()
    with largest_file(10), pytest.raises(SystemExit) as stopped:
        correct(capsys, letter, "--in-place")
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert f"gidd: {letter}: File too large" in captured.err
    assert len(captured.out) > 100
    assert letter.read_bytes() == before
    assert os.listdir(letter.parent) == [letter.name]


def test_a_patch_applies(capsys, letter, tmp_path):
    corrected = correct(capsys, letter)[0]
    patch = tmp_path / "letter.patch"
    patch.write_bytes(correct(capsys, letter, "--diff")[0].encode())
    command = ["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", "-p1", str(patch)]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert letter.read_bytes() == corrected.encode()


def test_a_file_that_is_named_twice_is_changed_once(capsys, letter, tmp_path):
    (tmp_path / "link").symlink_to("letter.txt")
    out, err = correct(capsys, "letter.txt", "./letter.txt", "link", "--in-place", "--jsonl")
    assert letter.read_bytes().decode() == json.loads(out)["text"] != json.loads(out)["original"]


def test_lines_and_columns_begin_at_one():
    starts = line_starts("ab\n\ncd")
    assert starts == [0, 3, 4]
    assert [place_of(starts, i) for i in (0, 2, 3, 5)] == [(1, 1), (1, 3), (2, 1), (3, 2)]
    assert [percent(p) for p in (0.9999, 1.0, 0.5, 0.001)] == ["99%", "100%", "50%", "0%"]


def test_min_confidence_leaves_more_to_the_user(capsys, letter):
    few = json.loads(correct(capsys, letter, "--min-confidence", "1", "--jsonl")[0])
    assert few["edits"] and not any(edit["change"] for edit in few["edits"])
    assert few["text"] == few["original"]


def test_several_files_and_standard_input(capsys, letter, tmp_path, monkeypatch):
    (tmp_path / "other.txt").write_text(TEXT[:60])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT[:40].encode())))
    out, err = correct(capsys, "other.txt", "-", "letter.txt", "other.txt", "--jsonl")
    names = [json.loads(line)["file"] for line in out.splitlines()]
    assert names == ["other.txt", "standard input", "letter.txt"]
    assert [line.split(":")[1] for line in err.splitlines()] == [f" {name}" for name in names]
    out, _ = correct(capsys, "other.txt", "letter.txt", "--diff")
    assert re.findall(r"^\+\+\+ b/(.*)", out, re.M) == ["other.txt", "letter.txt"]
    correct(capsys, "other.txt", "letter.txt", "--in-place")
    assert (tmp_path / "other.txt").read_text() != TEXT[:60]


def test_a_terminal_gets_changed_lines_with_confidences(capsys, monkeypatch, letter):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "60")):
        monkeypatch.setenv(name, value)
    out, _ = correct(capsys, letter)
    assert "\x1b[9;31m" in out and "\x1b[1;32m" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert re.search(r"^ *\d+ │ .*→.* \d\d?%", plain, re.M)


def test_an_empty_text_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        correct(capsys, "--text", "")
    assert "empty" in capsys.readouterr().err


def test_a_text_that_is_protected_stays(capsys):
    out, err = correct(capsys, "--text", "teh union", "--protect", ".*")
    assert out == "teh union\n"
    assert "0 changes, 0 left for you, 0 forward passes" in err
