"""Export writes one checkpoint, the newest valid one, and nothing of any other."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import SafetensorError
from support.ranks import start_ranks
from support.training_runs import speeches, tiny_run, train_here

import gidd
import gidd.runs.export
from gidd.cli import main
from gidd.data.tokenizers import Tokenizer, character_level
from gidd.errors import CheckpointError
from gidd.models import load_pretrained
from gidd.runs.export import export
from gidd.training.checkpoints import manager
from gidd.training.checkpoints.folder import (
    MANIFEST,
    CheckpointManifest,
    entry,
    folder_name,
    read_manifest,
    steps_in,
    write_manifest,
)
from gidd.training.world import open_world

FOREIGN = Path(__file__).parents[1] / "golden" / "foreign"


class Trained(NamedTuple):
    run: Path
    data: Path


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
    reseal(newest, 10)
    return Trained(out, data)


def reseal(folder: Path, step: int, like: int | None = None) -> None:
    """Write a manifest that fits the files, as an attacker can; `like` is the step of the old."""
    tensors = read_manifest(folder, step if like is None else like).tensors
    files = {path.name: entry(path) for path in folder.iterdir() if path.name != MANIFEST}
    write_manifest(folder, CheckpointManifest(step=step, tensors=tensors, files=files))


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained.run, tmp_path / "run")


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


@pytest.mark.slow
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


def rotate(run: Path) -> None:
    """Do to the checkpoints what a training does: write a newer one, delete the others."""
    folder = run / "checkpoints"
    step = max(steps_in(folder))
    newest, newer = folder / folder_name(step), folder / folder_name(step + 5)
    shutil.copytree(newest, newer)
    reseal(newer, step + 5, like=step)
    for old in steps_in(folder)[:-1]:
        shutil.rmtree(folder / folder_name(old))


@pytest.fixture
def rotating(run, monkeypatch):
    """A function that makes the run rotate its checkpoints before the next N calls of another."""

    def before(times, module, name):
        function = getattr(module, name)
        left = iter(range(times))

        def call(*args):
            if next(left, None) is not None:
                rotate(run)
            return function(*args)

        monkeypatch.setattr(module, name, call)

    return before


BETWEEN = {
    "listing and verifying": (manager, "damage"),
    "verifying and reading run.yaml": (gidd.runs.export, "read_regular"),
    "reading run.yaml and the tensors": (gidd.runs.export, "build_step"),
    "comparing and reading the tensors": (manager, "read_tensors"),
}


@pytest.mark.parametrize("moment", BETWEEN)
def test_checkpoints_that_rotate_meanwhile_are_neither_used_nor_called_damaged(
    run, tmp_path, rotating, moment
):
    rotating(2, *BETWEEN[moment])
    with open_world("cpu") as world:
        assert export(run, tmp_path / "model", world) == (20, [])
    assert load_pretrained(tmp_path / "model").summary["steps"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["listing and verifying", "comparing and reading the tensors"])
def test_a_run_that_deletes_faster_than_it_can_be_read_ends_in_a_message(
    run, tmp_path, rotating, moment
):
    rotating(10**6, *BETWEEN[moment])
    with open_world("cpu") as world, pytest.raises(CheckpointError, match=r"faster.*--train.keep"):
        export(run, tmp_path / "model", world)


def test_a_checkpoint_that_cannot_be_read_but_is_there_is_not_replaced_by_an_older_one(
    run, tmp_path, monkeypatch
):
    def fails(*args):
        raise MemoryError("no memory left")

    monkeypatch.setattr(gidd.runs.export, "build_step", fails)
    with (
        open_world("cpu") as world,
        pytest.raises(CheckpointError, match="step-000000010.*no memory left"),
    ):
        export(run, tmp_path / "model", world)


@pytest.mark.slow
@pytest.mark.parametrize("exports", [6, pytest.param(50, marks=pytest.mark.long)])
def test_many_exports_beside_a_run_that_saves_at_every_step(exports, trained, tmp_path):
    run, out = tiny_run(trained.data, steps=10**6, save_every=1, keep=1), tmp_path / "run"
    (process,), (pipe,) = start_ranks(train_here, 1, run, out)
    try:
        exported = []
        for _ in range(exports):
            newest = exported[-1][0] if exported else 0
            while max(steps_in(out / "checkpoints"), default=0) <= newest:
                assert process.is_alive()
                time.sleep(0.01)
            with open_world("cpu") as world:
                exported.append(export(out, tmp_path / "model", world))
    finally:
        process.kill()
        process.join()
        pipe.close()
    assert all(notes == [] for _, notes in exported)
    steps = [step for step, _ in exported]
    assert steps == sorted(set(steps))  # each of a later checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_of_all_files_follow_the_umask(trained, tmp_path, umask):
    before = os.umask(umask)
    try:
        train_here(tiny_run(trained.data, steps=1), tmp_path / "run")
        with open_world("cpu") as world:
            export(tmp_path / "run", tmp_path / "model", world)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    assert {"model.safetensors", "metrics.jsonl", "record.json", "run.yaml"} <= modes.keys()
    assert any(name.startswith("shard-") for name in modes)
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


def test_a_model_is_replaced_only_if_asked(trained, tmp_path, capsys):
    out = tmp_path / "model"
    words = ["export", str(trained.run), "--out", str(out)]
    main(words)
    before = (out / "gidd.json").stat().st_mtime_ns
    with pytest.raises(SystemExit):
        main(words)
    assert "--overwrite" in capsys.readouterr().err
    assert (out / "gidd.json").stat().st_mtime_ns == before
    main([*words, "--overwrite", "--bf16"])
    assert next(load_pretrained(out).denoiser.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("bf16", [False, True])
def test_a_model_of_another_project_is_converted(bf16, tmp_path):
    folder = shutil.copytree(FOREIGN / "llada", tmp_path / "llada")
    character_level("".join(map(chr, range(0x4E00, 0x4E00 + 65)))).save(folder)
    main(["export", str(folder), "--out", str(tmp_path / "model")] + ["--bf16"] * bf16)
    theirs, ours = (gidd.from_pretrained(p, device="cpu") for p in (folder, tmp_path / "model"))
    assert (tmp_path / "model" / "gidd.json").is_file()
    assert ours.schedule == theirs.schedule
    z, t = torch.arange(20)[None], torch.tensor([0.5])
    tolerance = 0.02 if bf16 else 0
    torch.testing.assert_close(ours.denoiser(z, t), theirs.denoiser(z, t), rtol=0, atol=tolerance)
