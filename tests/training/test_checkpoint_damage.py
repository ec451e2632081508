"""Damage of a checkpoint is found before anything of it is used."""

import json
import pickle
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_states import bits, on_ranks_save, placed, restore, wholes
from support.ranks import run_ranks, wait_for_all_ranks

from gidd.errors import CheckpointError
from gidd.training.checkpoints import (
    Checkpoints,
    manager as checkpoint,
    tensors as checkpoint_tensors,
)
from gidd.training.checkpoints.folder import (
    MANIFEST,
    CheckpointManifest,
    read_manifest,
    write_manifest,
)
from gidd.training.checkpoints.tensors import read_tensors
from gidd.training.world import World, open_world


@pytest.fixture
def world() -> Iterator[World]:
    with open_world("cpu") as opened:
        yield opened


@pytest.fixture
def two(tmp_path, world, monkeypatch) -> Checkpoints:
    """Checkpoints of steps 10 and 20, no file of which is like another."""
    monkeypatch.setattr(checkpoint_tensors, "FILE_BYTES", 60)
    checkpoints = Checkpoints(tmp_path, world)
    for step in (10, 20):
        checkpoints.save(step, wholes(step), {"step": step}, {"run.yaml": f"seed: {step}\n"})
    checkpoints.wait()
    return checkpoints


def harm(draw: random.Random, newest: Path, older: Path) -> tuple[str, Path]:
    """Damage one file of a checkpoint; the kind of damage, and the file."""
    path = draw.choice(sorted(newest.iterdir()))
    data = bytearray(path.read_bytes())
    kinds = ["flip", "cut", "emptied", "appended", "missing", "swapped", "stale", "added", "zeroed"]
    match kind := draw.choice(kinds):
        case "flip":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case "cut":
            del data[draw.randrange(len(data)) :]
        case "emptied":
            data.clear()
        case "appended":
            data += draw.choice([b"\n", b" ", b"\0", bytes(data)])
        case "missing":
            path.unlink()
            return kind, path
        case "swapped":
            other = draw.choice(sorted(set(newest.iterdir()) - {path}))
            data = bytearray(other.read_bytes())
            other.write_bytes(path.read_bytes())
            if other.name == MANIFEST:  # then nothing is known about other files
                path.write_bytes(data)
                return kind, other
        case "stale":
            data = bytearray((older / path.name).read_bytes())
        case "added":
            path = newest / draw.choice(["model.safetensors", "a.pt", "more.json"])
            data = bytearray(older.joinpath("record.json").read_bytes())
        case "zeroed":
            start = draw.randrange(len(data))
            data[start : start + 16] = bytes(len(data[start : start + 16]))
            if data == path.read_bytes():
                data[start] = 1
    path.write_bytes(data)
    return kind, path


@pytest.mark.slow
@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_each_corruption_is_found_before_use_and_the_checkpoint_before_taken(two, number):
    draw, kinds = random.Random(0), set[str]()
    older, newest = (two.path(step) for step in (10, 20))
    good = {path.name: path.read_bytes() for path in newest.iterdir()}
    hidden = two.folder / "hidden"
    for _ in range(number):
        kind, path = harm(draw, newest, older)
        kinds.add(kind)
        tensors = wholes(99)
        older.rename(hidden)
        with pytest.raises(CheckpointError, match=r"is damaged") as error:
            restore(two, tensors)
        assert str(path) in str(error.value), kind
        assert bits(tensors) == bits(wholes(99)), kind
        hidden.rename(older)
        restored = restore(two, tensors)
        assert restored is not None
        assert restored[:2] == (10, {"step": 10}), kind
        assert str(path) in "; ".join(restored.notes), kind
        assert bits(tensors) == bits(wholes(10)), kind
        for left in newest.iterdir():
            left.unlink()
        for name, data in good.items():
            (newest / name).write_bytes(data)
    assert len(kinds) == 9
    assert restore(two, wholes(99)) == (20, {"step": 20}, [])


@pytest.mark.slow
def test_every_byte_of_the_manifest_counts(two):
    path, draw = two.path(20) / MANIFEST, random.Random(0)
    data = path.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=MANIFEST):
            read_manifest(two.path(20), 20)
    path.write_bytes(data)
    read_manifest(two.path(20), 20)


def test_a_folder_under_the_name_of_another_step_is_refused(two):
    two.path(20).rename(two.path(30))
    restored = restore(two, wholes(99))
    assert restored is not None
    assert restored.step == 10
    assert restored.notes == [f"{two.path(30) / MANIFEST} belongs to step 20"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/b", ""])
def test_a_manifest_that_leads_out_of_its_folder_is_refused(two, name):
    (two.folder / "secret").write_text("")
    manifest = read_manifest(two.path(20), 20)
    files = {**manifest.files, name: {"bytes": 0, "sha256": ""}}
    write_manifest(two.path(20), CheckpointManifest(step=20, tensors=manifest.tensors, files=files))
    restored = restore(two, wholes(99))
    assert restored is not None
    assert restored.step == 10
    assert f"{MANIFEST} names {name!r}" in restored.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"content": 3}',
        '{"content": {"step": {}, "tensors": [], "files": 1}}',
        "[" * 10**5,
    ],
)
def test_a_manifest_that_is_something_else_is_refused(two, text):
    (two.path(20) / MANIFEST).write_text(text)
    restored = restore(two, wholes(99))
    assert restored is not None
    assert restored.notes == [f"{two.path(20) / MANIFEST} is damaged"]


def test_a_link_in_place_of_a_file_is_refused(two):
    path = two.path(20) / "record.json"
    path.rename(two.folder / "elsewhere.json")
    path.symlink_to(two.folder / "elsewhere.json")
    restored = restore(two, wholes(99))
    assert restored is not None
    assert restored.notes == [f"{path} is not a plain file"]


@pytest.mark.parametrize(
    "name", [".DS_Store", ".nfs000000000012", "._shard-00001-model-00001-of-00001.safetensors"]
)
def test_hidden_files_of_the_system_are_no_damage_and_are_not_read(two, name):
    (two.path(20) / name).write_bytes(b"of the system")
    tensors = wholes(99)
    assert restore(two, tensors) == (20, {"step": 20}, [])
    assert bits(tensors) == bits(wholes(20))


def forget(folder: Path, step: int, pattern: str) -> None:
    """Delete shards and rewrite the manifest as if they had never been written."""
    manifest = read_manifest(folder, step)
    gone = {path.name for path in folder.glob(pattern)}
    assert gone
    for name in gone:
        (folder / name).unlink()
    files = {name: what for name, what in manifest.files.items() if name not in gone}
    (folder / MANIFEST).unlink()
    write_manifest(folder, CheckpointManifest(step=step, tensors=manifest.tensors, files=files))


@pytest.mark.parametrize("pattern", ["*.safetensors", "shard-00001-model-00002-*.safetensors"])
def test_a_manifest_that_promises_more_tensors_than_its_files_hold_is_refused(two, pattern):
    forget(two.path(20), 20, pattern)
    restored = restore(two, wholes(99))
    assert restored is not None
    assert restored.step == 10
    assert f"{two.path(20)} does not hold all of " in restored.notes[0]


def test_part_of_a_sharded_tensor_does_not_count_as_the_tensor(tmp_path, world):
    """Both ranks' files name it, and so do those of the first alone."""
    run_ranks(on_ranks_save, 2, tmp_path, "fsdp", 5)
    checkpoints = Checkpoints(tmp_path, world)
    forget(checkpoints.path(5), 5, "shard-00002-*.safetensors")
    with pytest.raises(CheckpointError, match=r"step-000000005 does not hold all of .*bias"):
        restore(checkpoints, wholes(99))


def test_files_that_vanish_after_the_check_lead_to_the_checkpoint_before(two, monkeypatch):
    def read_too_late(folder: Path, tensors: Any) -> None:
        for shard in two.path(20).glob("*.safetensors"):
            shard.unlink()
        read_tensors(folder, tensors)

    monkeypatch.setattr(checkpoint, "read_tensors", read_too_late)
    tensors = wholes(99)
    restored = restore(two, tensors)
    assert restored is not None
    assert restored.step == 10
    assert all("is missing" in note for note in restored.notes)
    assert bits(tensors) == bits(wholes(10))


def test_when_all_files_vanish_after_the_check_the_run_does_not_restart(two, monkeypatch):
    def read_too_late(folder: Path, tensors: Any) -> None:
        for step in (10, 20):
            shutil.rmtree(two.path(step))
        read_tensors(folder, tensors)

    monkeypatch.setattr(checkpoint, "read_tensors", read_too_late)
    with pytest.raises(CheckpointError, match="step-000000020"):
        restore(two, wholes(99))


def test_when_valid_files_cannot_be_read_no_older_ones_are_taken(two, monkeypatch):
    def no_memory(*args: Any) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(checkpoint_tensors.dcp.HuggingFaceStorageReader, "read_data", no_memory)
    with pytest.raises(CheckpointError, match=r"step-000000020 could not be read: no memory left"):
        restore(two, wholes(99))


def on_ranks_restore_damaged(folder: Path) -> tuple[Any, dict[str, bytes]]:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world)
        for seed in (10, 20):
            checkpoints.save(seed, placed(world, "fsdp", seed), {})
        checkpoints.wait()
        shard = checkpoints.path(20) / "shard-00002-model-00001-of-00001.safetensors"
        if world.is_rank_zero:
            shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        wait_for_all_ranks(world)
        tensors = placed(world, "fsdp", 99)
        return restore(checkpoints, tensors), bits(tensors)


def test_all_ranks_take_the_checkpoint_before_when_one_finds_damage(tmp_path):
    for restored, values in run_ranks(on_ranks_restore_damaged, 2, tmp_path):
        assert restored.step == 10
        assert len(restored.notes) == 1
        assert (
            "shard-00002-model-00001-of-00001.safetensors has a different SHA" in restored.notes[0]
        )
        assert values == bits(wholes(10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": torch.ones(1)}, "more is missing"),
        ({"weight": None}, "weight is not part of this model"),
        ({"weight": torch.ones(7, 5)}, r"weight is float32 \[7, 4\], expected float32 \[7, 5\]"),
        ({"half": torch.ones(5, 2)}, r"half is bfloat16 \[5, 2\], expected float32 \[5, 2\]"),
    ],
)
def test_a_checkpoint_of_another_model_is_named_and_no_older_one_taken(two, change, message):
    asked = {**wholes(99), **change}
    asked = {name: tensor for name, tensor in asked.items() if tensor is not None}
    before = bits(asked)
    with pytest.raises(CheckpointError, match=f"step-000000020 holds another model: {message}"):
        restore(two, asked)
    assert bits(asked) == before


def test_a_part_of_the_tensors_can_be_read(two):
    tensors = {"weight": torch.zeros(7, 4)}
    assert two.latest_valid() == (20, [])
    assert two.read(20, tensors, partial=True) == {"step": 20}
    assert bits(tensors)["weight"] == bits(wholes(20))["weight"]


UNPICKLED: list[str] = []


def on_ranks_restore_listening(folder: Path) -> list[str]:
    with open_world("cpu", timeout=600) as world:
        tensors = placed(world, "fsdp", 99)
        checkpoints = Checkpoints(folder, world)
        sys.addaudithook(
            lambda event, args: (
                UNPICKLED.append(str(args)) if event == "pickle.find_class" else None
            )
        )
        pickle.loads(pickle.dumps(Path("a")))
        assert UNPICKLED  # the hook works
        UNPICKLED.clear()
        assert restore(checkpoints, tensors) == (5, {"seed": 5}, [])
        return UNPICKLED


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_pickled_on_disk_and_no_class_is_looked_up_by_a_pickle(tmp_path, ranks):
    run_ranks(on_ranks_save, ranks, tmp_path, "fsdp", 5)
    suffixes = {path.suffix for path in tmp_path.glob("step-*/*")}
    assert suffixes == {".safetensors", ".json", ".yaml"}
    for path in tmp_path.glob("step-*/*.json"):
        json.loads(path.read_bytes())
    assert run_ranks(on_ranks_restore_listening, ranks, tmp_path) == [[]] * ranks
