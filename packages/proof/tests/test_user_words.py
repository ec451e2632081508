"""The user's words: added and removed, one word at a time, by several programs, through kills."""

import os
import subprocess
import sys
import threading

import pytest
from gidd_proof import user_words
from gidd_proof.user_words import change_user_words, read_user_words

from gidd.cli import Limit
from gidd.errors import DataError

KILLS = """
import os, signal, sys
from pathlib import Path
from gidd_proof.user_words import change_user_words, read_user_words
path, number, ended = Path(sys.argv[1]), 0, 1
words = {"first", "second"}
change_user_words(path, add="first"), change_user_words(path, add="second")
while os.WIFSIGNALED(ended):
    number += 1
    if (child := os.fork()) == 0:
        left = number

        def kill(frame, event, function):
            global left
            owner = getattr(function, "__self__", None)
            if event.startswith("c_") and getattr(owner, "__name__", type(owner).__module__) in (
                "posix", "fcntl", "io", "_io"
            ):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(kill)
        change_user_words(path, add="third")
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    assert read_user_words([path]) in (words, words | {"third"}), number
    change_user_words(path, remove="third")
print(number)
"""


def test_words_are_added_and_removed(tmp_path):
    path = tmp_path / "new" / "words"
    assert change_user_words(path, add="qubits")
    assert not change_user_words(path, add="qubits")
    path.write_text(path.read_text() + "# kept\nother")
    assert change_user_words(path, add="third")
    assert change_user_words(path, remove="qubits")
    assert not change_user_words(path, remove="qubits")
    assert read_user_words([path]) == {"other", "third"}
    assert "# kept" in path.read_text()
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="words"):
        read_user_words([path])


@pytest.mark.parametrize(
    "word",
    [
        "",
        "two words",
        "two\nlines",
        "a#b",
        "\x1b[31m",
        "a\u200bb",
        "a\x85b",
        "\ud800",
        "a" * 101,
        ["a"],
    ],
)
def test_only_one_printable_word_is_added(tmp_path, word):
    with pytest.raises(DataError, match="a word must have 1 to 100 printable characters"):
        change_user_words(tmp_path / "words", add=word)
    assert os.listdir(tmp_path) == []


def test_a_list_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "words"
    path.write_text("longer\n")
    monkeypatch.setattr(user_words, "_FILE_BYTES", Limit(10))
    with pytest.raises(DataError, match="at most 10 bytes, got 15"):
        change_user_words(path, add="another")
    assert read_user_words([path]) == {"longer"}


def test_a_link_and_its_mode_stay(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "words", tmp_path / "words"
    real.write_text("first\r\nsecond\r\n")
    real.chmod(0o600)
    link.symlink_to(real)
    assert change_user_words(link, remove="second")
    assert link.is_symlink() and real.read_bytes() == b"first\r\n"
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_kill_at_any_system_call_loses_no_word(tmp_path):
    command = [sys.executable, "-c", KILLS, str(tmp_path / "words")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_two_writers_at_once_lose_no_word(tmp_path, monkeypatch):
    path, real = tmp_path / "words", user_words.read_regular
    other = threading.Thread(target=change_user_words, args=(path,), kwargs={"add": "other"})

    def read_then_let_another_write(*arguments):
        text = real(*arguments)
        if not other.ident:
            other.start()
            other.join(0.3)  # without a lock it ends here, and the first word replaces the other
        return text

    path.write_text("old\n")
    monkeypatch.setattr(user_words, "read_regular", read_then_let_another_write)
    change_user_words(path, add="first")
    other.join()
    assert read_user_words([path]) == {"old", "first", "other"}
