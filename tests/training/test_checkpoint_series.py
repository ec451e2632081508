"""Which checkpoints are visible: complete ones, the newest, and none in part."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_states import restore
from support.ranks import run_ranks

from gidd.errors import CheckpointError
from gidd.training.checkpoints import Checkpoints, manager as checkpoint
from gidd.training.checkpoints.folder import MANIFEST
from gidd.training.world import World, open_world


@pytest.fixture
def world() -> Iterator[World]:
    with open_world("cpu") as opened:
        yield opened


def test_the_newest_and_every_nth_stay(tmp_path, world):
    checkpoints = Checkpoints(tmp_path, world, keep=2, keep_every=4)
    for step in range(1, 11):
        checkpoints.save(step, {"a": torch.ones(1)}, {})
    checkpoints.wait()
    assert checkpoints.steps() == [4, 8, 9, 10]
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:09d}" for step in (4, 8, 9, 10)]


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path, world):
    tensors = {"a": torch.ones(1)}
    assert restore(Checkpoints(tmp_path / "new", world), tensors) is None
    assert tensors["a"] == 1


def test_a_step_is_not_written_twice(tmp_path, world):
    checkpoints = Checkpoints(tmp_path, world)
    for value in (1.0, 2.0):
        checkpoints.save(1, {"a": torch.tensor(value)}, {})
    tensors = {"a": torch.tensor(0.0)}
    restore(checkpoints, tensors)
    assert tensors["a"] == 1


def damaged_second(folder: Path, world: World) -> Checkpoints:
    """Checkpoints of steps 1 and 2, of which a new run finds the second damaged."""
    checkpoints = Checkpoints(folder, world)
    for step in (1, 2):
        checkpoints.save(step, {"a": torch.tensor(step)}, {})
    checkpoints.wait()
    (checkpoints.path(2) / "record.json").unlink()
    checkpoints = Checkpoints(folder, world)
    assert restore(checkpoints, {"a": torch.tensor(0)}) == (
        1,
        {},
        [f"{checkpoints.path(2) / 'record.json'} is missing"],
    )
    return checkpoints


def test_a_damaged_one_is_replaced_when_its_step_comes_again(tmp_path, world):
    checkpoints = damaged_second(tmp_path, world)
    checkpoints.save(2, {"a": torch.tensor(2)}, {})
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["step-000000001", "step-000000002"]
    assert restore(checkpoints, {"a": torch.tensor(0)}) == (2, {}, [])


def test_a_damaged_one_is_not_counted_among_those_that_stay(tmp_path, world):
    checkpoints = damaged_second(tmp_path, world)
    checkpoints.save(3, {"a": torch.tensor(3)}, {})
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3]


def test_steps_of_a_future_that_is_not_continued_do_not_push_out_new_ones(tmp_path, world):
    checkpoints = Checkpoints(tmp_path, world, keep=1)
    for step in (8, 2, 3):
        checkpoints.save(step, {"a": torch.tensor(step)}, {})
    checkpoints.wait()
    assert checkpoints.steps() == [3, 8]


def test_leftovers_go_at_the_start_but_not_for_a_reader(tmp_path, world):
    for name in (".step-000000003.tmp", ".trash-step-000000001-abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard").write_text("half")
    (tmp_path / "notes.txt").write_text("mine")
    assert restore(Checkpoints(tmp_path, world, read_only=True), {}) is None
    assert len(os.listdir(tmp_path)) == 3
    with Checkpoints(tmp_path, world):
        assert sorted(os.listdir(tmp_path)) == ["lock", "notes.txt"]


def test_a_second_run_is_refused_and_deletes_nothing_of_the_first(tmp_path, world):
    with Checkpoints(tmp_path, world) as first:
        under_way = tmp_path / ".step-000000001.tmp"
        under_way.mkdir()
        with (
            pytest.raises(CheckpointError, match="another run"),
            Checkpoints(tmp_path, world),
        ):
            pytest.fail("both write")
        with Checkpoints(tmp_path, world, read_only=True) as reader:
            assert reader.steps() == []
        assert under_way.is_dir()
        first.save(1, {"a": torch.ones(1)}, {})
    with Checkpoints(tmp_path, world) as second:
        assert restore(second, {"a": torch.ones(1)}) == (1, {}, [])


def test_a_run_that_failed_does_not_keep_the_next_one_out(tmp_path, world):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), Checkpoints(tmp_path, world):
            raise ZeroDivisionError


def test_a_save_that_goes_on_after_an_interruption_keeps_others_out(tmp_path, world, monkeypatch):
    go, write = threading.Event(), checkpoint.write_tensors

    def write_later(*args: Any) -> None:
        assert go.wait(30)
        write(*args)

    def interrupted(self: Checkpoints) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_tensors", write_later)
    with pytest.raises(KeyboardInterrupt), Checkpoints(tmp_path, world) as first:
        first.save(1, {"a": torch.ones(1)}, {})
        monkeypatch.setattr(Checkpoints, "wait", interrupted)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="another run"), Checkpoints(tmp_path, world):
        pytest.fail("both write")
    go.set()
    first.wait()
    assert first.steps() == [1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, world):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "checkpoints"
    with pytest.raises(CheckpointError) as error, Checkpoints(folder, world):
        pytest.fail("opened")
    assert f"{folder} cannot be written: Not a directory" in str(error.value)
    assert "--out" in str(error.value)


def on_ranks_begin(folder: Path) -> str:
    with open_world("cpu", timeout=600) as world:
        with pytest.raises(CheckpointError) as error, Checkpoints(folder, world):
            pass
        return str(error.value)


def test_all_ranks_of_a_second_run_are_refused(tmp_path, world):
    with Checkpoints(tmp_path, world):
        messages = run_ranks(on_ranks_begin, 2, tmp_path, timeout=300)
    assert all("another run" in message for message in messages)


def test_a_reader_does_not_save(tmp_path, world):
    with pytest.raises(CheckpointError, match="read_only"):
        Checkpoints(tmp_path, world, read_only=True).save(1, {"a": torch.ones(1)}, {})


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks at system calls")
def test_all_is_forced_to_disk_before_it_is_seen_and_seen_before_anything_old_goes(
    tmp_path, world, monkeypatch
):
    """Otherwise a power cut could leave a visible checkpoint with empty files, or none."""
    checkpoints = Checkpoints(tmp_path, world, keep=1)
    checkpoints.save(1, {"a": torch.ones(1)}, {}, {"run.yaml": ""})
    checkpoints.wait()
    events: list[tuple[str, str]] = []
    real_fsync, real_rename, real_rmdir = os.fsync, os.rename, os.rmdir

    def fsync(descriptor: int) -> None:
        events.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        real_fsync(descriptor)

    def rename(source: Any, target: Any) -> None:
        events.append(("rename", os.path.basename(target)))
        real_rename(source, target)

    def rmdir(path: Any, **options: Any) -> None:
        events.append(("delete", os.path.basename(path)))
        real_rmdir(path, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "rmdir", rmdir)
    checkpoints.save(2, {"a": torch.ones(1)}, {}, {"run.yaml": ""})
    checkpoints.wait()
    seen = events.index(("rename", "step-000000002"))
    forced = {name for kind, name in events[:seen] if kind == "fsync"}
    assert {path.name for path in (tmp_path / "step-000000002").iterdir()} - forced == {MANIFEST}
    assert any(
        name.startswith(f".{MANIFEST}.") for name in forced
    )  # a temporary file, then renamed
    assert events[seen - 1] == ("fsync", ".step-000000002.tmp")
    after = [(kind, name.split("-")[0]) for kind, name in events[seen + 1 :]]
    folder = ("fsync", tmp_path.name.split("-")[0])
    assert after == [folder, ("rename", ".trash"), folder, ("delete", ".trash")]
