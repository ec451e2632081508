"""Disks and ranks that fail leave the last checkpoint, and no rank waits forever."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_states import restore
from support.ranks import run_ranks, wait_for_all_ranks
from torch import Tensor
from torch.distributed.tensor import Shard, distribute_tensor

from gidd.errors import CheckpointError
from gidd.training.checkpoints import Checkpoints, manager as checkpoint
from gidd.training.checkpoints.tensors import write_tensors
from gidd.training.world import World, open_world


@pytest.fixture
def world() -> Iterator[World]:
    with open_world("cpu") as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def filled(value: float) -> dict[str, Tensor]:
    """1.6 MB, half of it for each of two ranks."""
    return {name: torch.full((200_000,), float(value)) for name in "ab"}


def on_ranks_fill_disk(folder: Path) -> str:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world, keep=9)
        for step in (1, 2, 3):
            checkpoints.save(step, filled(step), {})
        with pytest.raises(CheckpointError) as error:
            checkpoints.wait()
        assert checkpoints.steps() == [1, 2]
        wait_for_all_ranks(world)
        assert not list(folder.glob(".*"))
        tensors = filled(0)
        assert restore(checkpoints, tensors) == (2, {}, [])
        assert torch.equal(tensors["b"], filled(2)["b"])
        wait_for_all_ranks(world)
        if world.is_rank_zero:
            shutil.rmtree(checkpoints.path(1))
        wait_for_all_ranks(world)
        checkpoints.save(3, filled(3), {})  # with free space again, the run continues
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3]
        return str(error.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(small_disk, ranks):
    for message in run_ranks(on_ranks_fill_disk, ranks, small_disk):
        assert "the checkpoint of step 3 could not be written" in message
        assert "No space left on device" in message
        assert "intact: step-000000001, step-000000002." in message


def test_a_disk_that_became_read_only_leaves_the_last_checkpoint(small_disk, world):
    checkpoints = Checkpoints(small_disk, world)
    checkpoints.save(1, filled(1), {})
    checkpoints.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    checkpoints.save(2, filled(2), {})
    with pytest.raises(CheckpointError, match=r"Read-only file system.*step-000000001"):
        checkpoints.wait()
    assert restore(checkpoints, filled(0)) == (1, {}, [])


def on_ranks_last_may_not_write(folder: Path) -> str:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world)
        checkpoints.save(1, filled(1), {})
        checkpoints.wait()
        if world.rank == world.size - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        checkpoints.save(2, filled(2), {})
        with pytest.raises(CheckpointError) as error:
            checkpoints.save(3, filled(3), {})
        wait_for_all_ranks(world)
        assert os.listdir(folder) == ["step-000000001"]
        assert restore(checkpoints, filled(0)) == (1, {}, [])
        return str(error.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_when_one_rank_cannot_write_all_learn_of_it_at_once(tmp_path, ranks):
    messages = run_ranks(on_ranks_last_may_not_write, ranks, tmp_path, timeout=300)
    assert len(set(messages)) == 1
    assert f"rank {ranks - 1}: [Errno 27] File too large" in messages[0]


def on_ranks_files_vanish(folder: Path, pattern: str) -> str:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world)
        checkpoints.save(1, sharded(world, 1), {})
        checkpoints.wait()

        def write_then_lose(temporary: Path, *args: Any) -> None:
            write_tensors(temporary, *args)
            wait_for_all_ranks(world)
            if world.is_rank_zero:
                for path in list(folder.glob(pattern)):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            wait_for_all_ranks(world)

        checkpoint.write_tensors = write_then_lose
        checkpoints.save(2, sharded(world, 2), {}, {"run.yaml": ""})
        with pytest.raises(CheckpointError) as error:
            checkpoints.wait()
        wait_for_all_ranks(world)
        assert os.listdir(folder) == ["step-000000001"]
        return str(error.value)


def sharded(world: World, value: float) -> dict[str, Tensor]:
    """One tensor, of which every rank has some rows."""
    return {"a": distribute_tensor(torch.full((200, 100), value), world.mesh, [Shard(0)])}


@pytest.mark.parametrize(
    ("ranks", "pattern"),
    [
        (1, ".step-000000002.tmp"),
        (2, ".step-000000002.tmp"),
        (2, ".step-000000002.tmp/shard-00002-*"),
    ],
)
def test_files_deleted_while_others_are_written_are_missed_before_the_rest_is_seen(
    tmp_path, ranks, pattern
):
    """Also if the folder is made again, and if the files of other ranks name all tensors."""
    for message in run_ranks(on_ranks_files_vanish, ranks, tmp_path, pattern):
        assert "the checkpoint of step 2 could not be written" in message
        assert "does not hold all of a" in message


def on_ranks_last_dies(folder: Path, said: Path) -> None:
    with open_world("cpu", timeout=600) as world:
        checkpoints = Checkpoints(folder, world)
        checkpoints.save(1, filled(1), {})
        checkpoints.wait()
        if world.rank == 1:
            checkpoint.entry = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(2, filled(2), {})
        with pytest.raises(CheckpointError) as error:
            checkpoints.wait()
        said.write_text(str(error.value))


def test_when_one_rank_dies_while_saving_the_others_do_not_wait(tmp_path):
    with pytest.raises(AssertionError, match=r"\Arank 1: died without a result\Z"):
        run_ranks(on_ranks_last_dies, 2, tmp_path / "run", tmp_path / "said", timeout=300)
    assert "the checkpoint of step 2 could not be written" in (tmp_path / "said").read_text()
    assert os.listdir(tmp_path / "run") == ["step-000000001"]
