"""Export writes one checkpoint, the newest valid one, and nothing of any other."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError
from support.training_runs import speeches, tiny_run, train_here

from gidd.cli import main
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError
from gidd.models import load_pretrained
from gidd.runs.export import export
from gidd.training.checkpoints.folder import (
    CheckpointManifest,
    entry,
    read_manifest,
    write_manifest,
)
from gidd.training.world import open_world


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with valid checkpoints of steps 5 and 10, whose tokenizers differ."""
    data = speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)
    out = tmp_path_factory.mktemp("run")
    assert train_here(tiny_run(data, steps=10, save_every=5), out)
    newest = out / "checkpoints" / "step-000000010"
    content = json.loads((newest / "tokenizer.json").read_bytes())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (newest / "tokenizer.json").write_text(json.dumps(content))
    manifest = read_manifest(newest, 10)
    files = {**manifest.files, "tokenizer.json": entry(newest / "tokenizer.json")}
    write_manifest(newest, CheckpointManifest(step=10, tensors=manifest.tensors, files=files))
    return out


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


HARM = {
    "no run.yaml": lambda newest: (newest / "run.yaml").unlink(),
    "cut tokenizer": lambda newest: cut(newest / "tokenizer.json"),
    "flipped weight": lambda newest: flip(next(newest.glob("*.safetensors"))),
}


@pytest.mark.parametrize("kind", HARM)
def test_a_damaged_checkpoint_is_skipped_and_named(run, tmp_path, kind, capsys):
    older, newest = (run / "checkpoints" / f"step-{step:09d}" for step in (5, 10))
    HARM[kind](newest)
    main(["export", str(run), "--out", str(tmp_path / "model")])
    printed = capsys.readouterr()
    assert "step 5" in printed.out
    assert str(newest) in printed.err
    loaded = load_pretrained(tmp_path / "model")
    assert loaded.summary["steps"] == 5
    assert Tokenizer.load(tmp_path / "model").encode("a b") == Tokenizer.load(older).encode("a b")


@pytest.mark.parametrize("kind", HARM)
def test_when_all_are_damaged_nothing_is_written(run, tmp_path, kind):
    for folder in (run / "checkpoints").glob("step-*"):
        HARM[kind](folder)
    with (
        open_world("cpu") as world,
        pytest.raises(CheckpointError, match=r"every checkpoint in .* damaged"),
    ):
        export(run, tmp_path / "model", world)
    assert not (tmp_path / "model").exists()


def test_a_run_is_exported_while_it_trains(run, tmp_path):
    """The reader takes no lock and changes nothing."""
    older, newest = (run / "checkpoints" / f"step-{step:09d}" for step in (5, 10))
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    (run / "checkpoints" / ".step-000000015.tmp").mkdir()
    with open_world("cpu") as world:
        assert export(run, tmp_path / "model", world) == (10, [])
    assert Tokenizer.load(tmp_path / "model").encode("a b") == Tokenizer.load(newest).encode("a b")
    assert Tokenizer.load(newest).encode("a b") != Tokenizer.load(older).encode("a b")
    after = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert after == sorted([*before, ".step-000000015.tmp"])


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_file_modes_follow_the_umask(run, tmp_path, umask):
    before = os.umask(umask)
    try:
        with open_world("cpu") as world:
            export(run, tmp_path / "model", world)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in modes
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_full_disk_ends_in_one_message(run, tmp_path, monkeypatch, capsys, error):
    def full_disk(tensors, file, metadata):
        Path(file).write_bytes(b"half of")
        raise error

    monkeypatch.setattr("gidd.models.weights.save_file", full_disk)
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(run), "--out", str(tmp_path / "model")])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    file = tmp_path / "model" / "model.safetensors"
    assert message.count("\n") == 1
    assert f"{file} could not be written" in message and "No space left on device" in message
    assert not list((tmp_path / "model").iterdir())
