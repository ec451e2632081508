"""Files that are named or lie in folders: only regular ones are read, and standard input is -."""

import io
import os
import sys

import gidd_proof
import pytest
from gidd_proof.cli import main
from gidd_proof.contexts import Contexts
from gidd_proof.error_models import ErrorModel
from gidd_proof.user_words import read_user_words, word_files
from gidd_proof.words import MODEL_FOLDER, WordList

from gidd.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
TEXT = "The peopel came."


@pytest.fixture(autouse=True)
def _folder(proofreader, monkeypatch, tmp_path):
    monkeypatch.setattr(gidd_proof, "load", lambda *_, **__: proofreader, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text(TEXT)


def run(capsys, *words):
    """Return the exit status, what is printed, and the messages of a command."""
    status = 0
    try:
        main(list(words))
    except SystemExit as stopped:
        status = stopped.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        ["check", "pipe"],
        ["fix", "pipe", "--in-place"],
        ["check", "/dev/zero"],
        ["check", "."],
        ["check", "letter.txt", "--words", "pipe"],
        ["letter.txt", "--words", "pipe"],
        ["learn-errors", "pipe", "--out", "a.json"],
        ["count-words", "letter.txt", "pipe", "--out", "words.txt"],
    ],
)
def test_pipes_devices_and_folders_are_refused_by_name(capsys, tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    kind = {"/dev/zero": "character device", ".": "folder"}.get(words[1], "named pipe")
    status, out, message = run(capsys, *words)
    assert (status, out, message.count("\n")) == (2, "", 1)
    assert f"must be a regular file, got a {kind}." in message


@pytest.mark.parametrize("name", [".gidd-proof-words", "words.txt", "contexts.npz"])
def test_a_pipe_in_a_folder_is_refused_and_not_passed_over(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} must be a regular file, got a named pipe"):
        read_user_words(word_files(tmp_path))
        WordList.of_model(tmp_path)
        Contexts.of_model(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "zeros", "not a file", "[" * 100_000])
def test_damaged_files_are_refused_by_name(tmp_path, damage):
    path = tmp_path / "contexts.npz"
    content = (MODEL_FOLDER / path.name).read_bytes()
    damaged = {"cut": content[:-9], "zeros": content[:9999] + bytes(99) + content[10098:]}
    path.write_bytes(damaged.get(damage, damage.encode()))
    for read in (Contexts.of_model, lambda folder: ErrorModel.read(folder / path.name)):
        with pytest.raises(DataError, match=r"contexts\.npz"):
            read(tmp_path)


def test_standard_input_is_a_dash(capsys, monkeypatch):
    for words, content in ((["count-words"], b"the the union"), (["learn-errors"], b"hte\tthe")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run(capsys, *words, "-", "--out", "out")[0] == 0


def test_a_text_ends_with_a_line_break_and_a_file_as_it_did(capsys, tmp_path):
    rate = ["--error-rate", "0.05"]
    assert run(capsys, "--text", TEXT, *rate)[1] == "The people came.\n"
    assert run(capsys, "letter.txt", *rate)[1] == "The people came."


def test_a_file_that_is_named_twice_is_changed_once(capsys, tmp_path):
    status, _, message = run(capsys, "letter.txt", "./letter.txt", "--in-place")
    assert (status, message.count("\n")) == (0, 1)
    assert (tmp_path / "letter.txt").read_text() == "The people came."
    assert run(capsys, "check", os.fsdecode(b"\xff.txt"))[0] == 2
