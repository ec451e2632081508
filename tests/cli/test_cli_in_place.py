"""`gidd correct --in-place`: what is kept of the file, and what is said if it cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.resources import largest_file
from support.small_model import TEXT, write_model

from gidd.cli import main
from gidd.common.files import atomic_path

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the files of Unix")

OPTIONS = ["--error-rate", "0.4"]
KILLED = """
import os, signal, sys
from pathlib import Path
from gidd.cli import correct_files
correct_files._copy_owner = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
correct_files.replace_file(Path(sys.argv[1]), Path(sys.argv[1]).read_text(), "corrected")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def letter(tmp_path) -> Path:
    path = tmp_path / "letter [1].txt"
    path.write_text(TEXT)
    return path


def correct_in_place(capsys, model: str, letter: Path) -> str:
    """Return what is printed to standard error."""
    main(["correct", str(letter), "--model", model, *OPTIONS, "--in-place"])
    assert letter.read_text() != TEXT
    return capsys.readouterr().err


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except (OSError, AttributeError) as error:
        pytest.skip(f"the file system cannot store the attribute {name}: {error}")


def test_extended_attributes_are_kept(capsys, model, letter):
    set_attribute(letter, "user.origin", b"\x00a letter\xff")
    set_attribute(letter, "user.empty", b"")
    err = correct_in_place(capsys, model, letter)
    assert os.getxattr(letter, "user.origin") == b"\x00a letter\xff"
    assert os.getxattr(letter, "user.empty") == b""
    assert err.count("\n") == 1  # the figures only


def test_what_cannot_be_kept_is_said_in_one_message(capsys, model, letter, monkeypatch):
    set_attribute(letter, "user.kept", b"1")
    set_attribute(letter, "user.refused", b"2")
    real = os.setxattr

    def refuse(path: Path, name: str, value: bytes) -> None:
        if name == "user.refused":
            raise PermissionError(1, "Operation not permitted")
        real(path, name, value)

    def chown(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "chown", chown)
    err = correct_in_place(capsys, model, letter)
    (line,) = [line for line in err.splitlines() if "user.refused" in line]
    assert str(letter) in line and "group, owner, user.refused" in line
    assert os.listxattr(letter) == ["user.kept"]


def test_rights_of_a_program_are_not_given_to_another_content(capsys, model, letter):
    # cap_net_raw, as `setcap` writes it
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    set_attribute(letter, "security.capability", capability)
    assert "security.capability" in correct_in_place(capsys, model, letter)
    assert not os.listxattr(letter)


def test_other_hard_links_keep_the_old_text_and_this_is_said(capsys, model, letter):
    for name in ("second", "third"):
        os.link(letter, letter.with_name(name))
    err = correct_in_place(capsys, model, letter)
    assert f"{letter}: 2 other names" in err
    assert letter.with_name("second").read_text() == letter.with_name("third").read_text() == TEXT


def test_the_copy_of_a_killed_process_is_removed_and_that_of_a_running_one_is_not(
    capsys, model, letter
):
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(letter)])
        assert killed.returncode == -9
    assert letter.read_text() == TEXT
    assert len(os.listdir(letter.parent)) == 2  # the second one removed the copy of the first
    with atomic_path(letter) as running:
        running.write_text("not complete")
        correct_in_place(capsys, model, letter)
        assert sorted(os.listdir(letter.parent)) == sorted([letter.name, running.name])
        running.write_bytes(letter.read_bytes())
    assert os.listdir(letter.parent) == [letter.name]


def test_a_full_disk_names_the_file_prints_the_text_and_leaves_nothing(capsys, model, letter):
    with largest_file(10), pytest.raises(SystemExit) as stopped:
        main(["correct", str(letter), "--model", model, *OPTIONS, "--in-place"])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert f"gidd: {letter}: File too large" in captured.err
    assert len(captured.out) > 100
    assert letter.read_text() == TEXT
    assert os.listdir(letter.parent) == [letter.name]
