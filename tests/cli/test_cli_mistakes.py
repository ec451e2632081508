"""Mistakes and interruptions: one message, or none, and the right exit code."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.small_model import TEXT, write_model

import gidd
from gidd import cli
from gidd.cli import main
from gidd.pipeline import Pipeline

pytest.importorskip("tokenizers", reason='needs `pip install "gidd[data]"`')

FEW = ["--steps", "3", "--length", "12"]
NOBODY = 65534


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def ended(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that fails."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes end in another way")
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["sample", "--help"],
        ["sample", "MODEL", *FEW, "--jsonl"],
        pytest.param(["plan", "nano", "--device", "cpu"], marks=pytest.mark.long),
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
        (MemoryError(), 2, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"), 2, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "out of memory"),
    ],
)
@pytest.mark.parametrize("where", ["while it is imported", "while it runs"])
def test_errors_of_the_system_end_in_one_message(
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


@pytest.mark.parametrize("error", [RecursionError("too deep"), RuntimeError("shapes differ")])
def test_a_bug_stays_a_traceback(monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(main=fail))
    with pytest.raises(type(error), match=str(error)):
        main(["sample"])


SWALLOWS = """
import os, signal, time

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    pass  # as numpy does when torch imports it
"""

IMPORTS_IT = """
import signal
from gidd import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
cli.importlib.import_module = lambda name: __import__("swallows")
cli.main(["sample"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
def test_a_module_cannot_swallow_an_interrupt_while_it_is_imported(tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    command = [sys.executable, "-c", IMPORTS_IT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "gidd: stopped.\n")


def test_an_interrupt_of_the_event_loop_itself_forgets_no_task():
    """There, KeyboardInterrupt would lose the handle of a task that is then awaited forever."""
    was_raised = []

    async def interrupted() -> None:
        frame = sys._getframe()
        while frame.f_code.co_name != "_run_once":
            frame = frame.f_back
        try:
            cli._on_interrupt(signal.SIGINT, frame)
        except KeyboardInterrupt:
            was_raised.append(True)
        await asyncio.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert not was_raised
    with pytest.raises(KeyboardInterrupt):
        cli._on_interrupt(signal.SIGINT, sys._getframe())


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
        (["correct", "--model", "no-model", "DEVICE", "--in-place"], "be a regular file, got a ch"),
    ],
)
def test_impossible_targets_are_refused_before_the_model_is_opened(capsys, places, words, message):
    code, out, err = ended(capsys, *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert "--html" in err or "DEVICE" in words


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
    for words in (["sample", "no-model", "--html"], ["correct", "--model", "m", "--in-place"]):
        code, _, err = ended(capsys, *words, str(letter))
        assert code == 2
        assert "Permission denied" in err
        assert words[-1] in err


def test_text_is_printed_before_a_page_fails(capsys, model, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gidd.viz.html.write_page", fail)
    words = ["--html", str(tmp_path / "page.html")]
    code, out, err = ended(capsys, "sample", model, *FEW, "--prompt", "Peace", *words)
    assert code == 2
    assert out.startswith("Peace")
    assert "No space left" in err


def test_a_correction_is_printed_if_its_file_was_changed_meanwhile(
    capsys, model, monkeypatch, tmp_path
):
    letter = tmp_path / "letter.txt"
    letter.write_text(TEXT)
    correct = Pipeline.correct

    def change_and_correct(self, text, **settings):
        letter.write_text("new")
        return correct(self, text, **settings)

    monkeypatch.setattr(Pipeline, "correct", change_and_correct)
    code, out, err = ended(
        capsys, "correct", str(letter), "--model", model, "--error-rate", "0.1", "--in-place"
    )
    assert code == 2
    assert len(out) > 100
    assert f"{letter} changed" in err
    assert letter.read_text() == "new"


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("words", [["sample", "MODEL"], ["train", "nano"]])
def test_devices_that_are_not_there(capsys, model, words, device, monkeypatch):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: None)
    words = [model if word == "MODEL" else word for word in words]
    code, _, err = ended(capsys, *words, "--device", device)
    assert code == 2
    assert f"got {device}" in err


URL = "http://somebody:open-sesame@127.0.0.1:9/pages.jsonl?signature=signed-once"


@pytest.mark.parametrize(
    "words",
    [
        [URL],
        ["train", URL],
        ["train", "nano", "--data.source", URL],
        ["train", "nano", f"--data.source={URL}"],
        ["train", "nano", "--data.folder", URL, "--dry-run"],
        ["plan", "nano", "--ranks", URL],
        ["data", URL],
        ["data", "prepare", URL, "--outt", "x"],
        ["data", "prepare", "x", "--tokenizer", URL, "--out", "x"],
        ["data", "prepare", "x", "--tokenizer", "x", "--out", "x", "--workers", URL],
        ["export", URL, "--outt", "x"],
        ["plot", URL],
        ["sample", URL],
        ["sample", "x", URL, "--length", URL],
        ["infill", "x", "--text", URL],
        ["correct", "x", URL],
    ],
)
@pytest.mark.parametrize("columns", ["40", "400"])
def test_mistakes_show_no_credentials(capsys, monkeypatch, tmp_path, words, columns):
    """tyro repeats arguments, broken into lines."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    code, out, err = ended(capsys, *words)
    assert code == 2
    printed = "".join(c for c in out + err if c not in "│ \n")
    assert not [part for part in ("somebody", "sesame", "signed", "once") if part in printed]
    assert not list(tmp_path.iterdir())


def test_plot_to_a_folder_without_permission_names_the_file(capsys, somebody):
    (somebody / "metrics.jsonl").write_text('{"step": 1, "kind": "training", "loss": 1.0}\n')
    somebody.chmod(0o555)
    code, _, err = ended(capsys, "plot", str(somebody))
    assert code == 2
    assert f"{somebody / 'curves.png'}: Permission denied" in err


@pytest.mark.slow
def test_dry_run_prints_size_and_settings(capsys):
    main(["train", "nano", "--dry-run", "--optimizer", "muon"])
    out = capsys.readouterr().out
    assert "parameters" in out and "Adam" not in out
    assert "p_uniform: 0.1" in out


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"gidd {gidd.__version__}\n"
