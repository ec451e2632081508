"""How `gidd` ends when something is in its way: one message, or none, and the right status."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_model import TEXT, write_model

import gidd
from gidd import cli
from gidd.cli import main
from gidd.cli import model_options as display

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

FEW = ["--steps", "3", "--length", "12"]
NOBODY = 65534


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def ended(capsys, *words: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a command that does not end well."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end in another way")
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["sample", "--help"],
        ["sample", "MODEL", *FEW, "--jsonl"],
        ["plan", "nano", "--device", "cpu"],
    ],
)
def test_a_closed_pipe_ends_it_quietly(model, words):
    """With the status that a shell reports for a program that a closed pipe has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gidd.cli", *(model if w == "MODEL" else w for w in words)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a.html"), 2, "No space left on device"),
        (OSError("the hub does not answer"), 2, "the hub does not answer"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
@pytest.mark.parametrize("where", ["while it is imported", "while it runs"])
def test_what_may_happen_anywhere_ends_in_one_message(
    capsys, monkeypatch, error, status, message, where
):
    def fail(*_):
        raise error

    found = fail if where == "while it is imported" else lambda _: SimpleNamespace(main=fail)
    monkeypatch.setattr(cli.importlib, "import_module", found)
    code, out, err = ended(capsys, "sample")
    assert (code, out) == (status, "")
    assert err.startswith("gidd: ")
    assert message in err
    assert err.count("\n") == 1


SWALLOWS = """
import os, signal, time
from gidd import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

def load(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        raise RecursionError from None

cli.importlib.import_module = load
cli.main(["sample"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
def test_a_module_cannot_swallow_an_interrupt_while_it_is_loaded():
    """As numpy does when torch loads it."""
    done = subprocess.run([sys.executable, "-c", SWALLOWS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "gidd: stopped.\n")


def test_help_loads_no_command():
    code = "import sys; from gidd.cli import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


@pytest.fixture
def places(tmp_path) -> dict[str, str]:
    (tmp_path / "letter.txt").write_text(TEXT)
    (tmp_path / "link").symlink_to("/dev/null")
    return {
        "FOLDER": str(tmp_path),
        "BELOW": str(tmp_path / "letter.txt" / "page.html"),
        "DEVICE": str(tmp_path / "link"),
        "LETTER": str(tmp_path / "letter.txt"),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "no-model", "--html", "FOLDER"], "not a regular file"),
        (["sample", "no-model", "--html", "/"], "not a regular file"),
        (["sample", "no-model", "--html", "BELOW"], "Not a directory"),
        (["sample", "no-model", "--html", "DEVICE"], "not a regular file"),
        (["infill", "no-model", "[MASK]", "--html", "FOLDER"], "not a regular file"),
        (["correct", "no-model", "LETTER", "--html", "FOLDER"], "not a regular file"),
        (["correct", "no-model", "DEVICE", "--in-place"], "not a regular file"),
    ],
)
def test_impossible_targets_are_refused_before_the_model_is_opened(capsys, places, words, message):
    code, out, err = ended(capsys, *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert "--html" in err or "--in-place" in err


@pytest.fixture
def somebody():
    """A folder of somebody who is not root, whom permissions do not stop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "letter.txt").write_text(TEXT)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            os.chown(folder / "letter.txt", NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield folder
        folder.chmod(0o700)
        os.seteuid(os.getuid())


@pytest.mark.skipif(sys.platform == "win32", reason="needs the permissions of Unix")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_targets_without_permission_are_refused(capsys, somebody, which):
    letter = somebody / "letter.txt"
    target = letter if which == "file" else somebody
    target.chmod(0o555)
    for words in (["sample", "no-model", "--html"], ["correct", "no-model", "--in-place"]):
        code, _, err = ended(capsys, *words, str(letter))
        assert code == 2
        assert "Permission denied" in err
        assert words[-1] in err


def test_text_is_printed_before_a_page_fails(capsys, model, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(display, "write_page", fail)
    words = ["--html", str(tmp_path / "page.html")]
    code, out, err = ended(capsys, "sample", model, *FEW, "--prompt", "Peace", *words)
    assert code == 2
    assert out.startswith("Peace")
    assert "No space left" in err
    code, out, _ = ended(
        capsys, "correct", model, "--text", "Peace", "--protect", "Peace", "--calls", "2", *words
    )
    assert code == 2
    assert out.startswith("Peace")


def test_a_correction_is_printed_if_its_file_was_changed_meanwhile(
    capsys, model, monkeypatch, tmp_path
):
    letter = tmp_path / "letter.txt"
    letter.write_text(TEXT)
    opens = display.Display.open

    def change_and_open(self, name):
        letter.write_text("new")
        return opens(self, name)

    monkeypatch.setattr(display.Display, "open", change_and_open)
    code, out, err = ended(capsys, "correct", model, str(letter), "--calls", "2", "--in-place")
    assert code == 2
    assert len(out) > 100
    assert "changed meanwhile" in err
    assert letter.read_text() == "new"


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("words", [["sample", "MODEL"], ["train", "nano"]])
def test_devices_that_are_not_there(capsys, model, words, device, monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: None)
    words = [model if word == "MODEL" else word for word in words]
    code, _, err = ended(capsys, *words, "--device", device)
    assert code == 2
    assert f"Got {device}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "MODEL", "--top-p", "2"], "top_p must be in (0, 1], got 2.0"),
        (["sample", "MODEL", "--length", "100000"], "smaller length"),
        (["sample", "MODEL", "--correction.calls", "1", *FEW], "ask for 2 or more"),
        (
            ["plan", "10b", "--parallel", "ddp", "--parallel.shard-size", "8"],
            "--parallel.shard-size",
        ),
        (["data", "prepare", "sotu", "--tokenizer", "gpt2", "--executor", "slurm"], "partition"),
    ],
)
def test_messages_speak_of_what_was_typed(capsys, model, words, message, tmp_path):
    words = [model if word == "MODEL" else word for word in words]
    if words[0] == "data":
        words += ["--out", str(tmp_path / "out")]
    code, _, err = ended(capsys, *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()  # nothing was begun


def test_it_says_which_version_it_is(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"gidd {gidd.__version__}\n"
