"""What is read is what was saved, however many ranks did either."""

import os
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_states import bits, on_ranks_save, placed, restore, wholes
from support.ranks import run_ranks

from gidd.errors import ConfigError
from gidd.training.checkpoints import (
    Checkpoints,
    manager as checkpoint,
    tensors as checkpoint_tensors,
)
from gidd.training.world import World, open_world


@pytest.fixture
def world() -> Iterator[World]:
    with open_world("cpu") as opened:
        yield opened


def on_ranks_restore(folder: Path, how: str) -> tuple[Any, dict[str, bytes]]:
    with open_world("cpu", timeout=600) as world:
        tensors = placed(world, how, seed=99)
        return restore(Checkpoints(folder, world), tensors), bits(tensors)


@pytest.mark.parametrize(("saved", "ranks"), [("whole", 1), ("whole", 2), ("fsdp", 2)])
def test_one_rank_reads_to_the_bit_what_others_saved(tmp_path, world, saved, ranks):
    run_ranks(on_ranks_save, ranks, tmp_path, saved, 5)
    tensors = wholes(99)
    assert restore(Checkpoints(tmp_path, world), tensors) == (5, {"seed": 5}, [])
    assert bits(tensors) == bits(wholes(5))
    assert (tmp_path / "step-000000005" / "run.yaml").read_text() == "5\n"


@pytest.mark.parametrize(
    ("saved", "ranks", "read", "readers"),
    [
        ("fsdp", 2, "fsdp", 4),
        ("hsdp", 4, "whole", 2),
        pytest.param("fsdp", 2, "fsdp", 2, marks=pytest.mark.long),
        pytest.param("fsdp", 4, "fsdp", 2, marks=pytest.mark.long),
        pytest.param("whole", 1, "hsdp", 4, marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_any_number_of_ranks_reads_to_the_bit_what_any_number_saved(
    tmp_path, saved, ranks, read, readers
):
    run_ranks(on_ranks_save, ranks, tmp_path, saved, 5)
    for restored, values in run_ranks(on_ranks_restore, readers, tmp_path, read):
        assert restored == (5, {"seed": 5}, [])
        assert values == bits(wholes(5))


def test_what_ranks_hold_together_is_written_once_and_shared_out(tmp_path):
    run_ranks(on_ranks_save, 2, tmp_path, "whole", 5)
    shards = sorted((tmp_path / "step-000000005").glob("*.safetensors"))
    assert len(shards) == 2
    values = sum(len(value) for value in bits(wholes(5)).values())
    assert values < sum(path.stat().st_size for path in shards) < values + 2_000


def test_views_transposed_and_shared_tensors_are_saved_as_they_look(tmp_path, world):
    grid = torch.randn(6, 8)
    tensors = {"a": grid, "again": grid, "transposed": grid.T, "part": grid[1:3, ::2]}
    checkpoints = Checkpoints(tmp_path, world)
    checkpoints.save(1, tensors, {})
    fresh = {name: torch.zeros(tensor.shape) for name, tensor in tensors.items()}
    restore(checkpoints, fresh)
    assert all(torch.equal(fresh[name], tensors[name]) for name in tensors)


def test_large_states_are_split_into_files(tmp_path, world, monkeypatch):
    monkeypatch.setattr(checkpoint_tensors, "FILE_BYTES", 100)
    checkpoints = Checkpoints(tmp_path, world)
    checkpoints.save(1, wholes(1), {})
    tensors = wholes(99)
    assert restore(checkpoints, tensors)
    assert bits(tensors) == bits(wholes(1))
    assert len(list(tmp_path.glob("step-*/*.safetensors"))) > 1


def test_what_changes_after_save_has_returned_is_not_saved(tmp_path, world, monkeypatch):
    go, write = threading.Event(), checkpoint.write_tensors

    def write_later(*args: Any) -> None:
        assert go.wait(30)
        write(*args)

    monkeypatch.setattr(checkpoint, "write_tensors", write_later)
    checkpoints, tensors, record = Checkpoints(tmp_path, world), wholes(1), {"loss": 0.5}
    checkpoints.save(1, tensors, record)
    for tensor in tensors.values():
        tensor.zero_()
    record["loss"] = 0.0
    assert checkpoints.steps() == []
    go.set()
    checkpoints.wait()
    assert checkpoints.steps() == [1]
    assert restore(checkpoints, tensors) == (1, {"loss": 0.5}, [])
    assert bits(tensors) == bits(wholes(1))


def on_ranks_fail_while_saving(folder: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        open_world("cpu", timeout=600) as world,
        Checkpoints(folder, world) as checkpoints,
    ):
        checkpoints.save(1, {"a": torch.ones(1_000_000)}, {})
        raise ZeroDivisionError


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_under_way_is_completed_when_training_fails(tmp_path, ranks):
    run_ranks(on_ranks_fail_while_saving, ranks, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["lock", "step-000000001"]


def test_numbers_of_the_record_come_back_to_the_bit(tmp_path, world):
    draw = random.Random(0)
    numbers = [draw.uniform(-1, 1) * 10.0 ** draw.randint(-320, 300) for _ in range(1000)]
    record = {"numbers": numbers, "tokens": 2**70, "text": "東京\n\u0000", "none": [None, True, {}]}
    checkpoints = Checkpoints(tmp_path, world)
    checkpoints.save(1, {"a": torch.ones(1)}, record)
    restored = restore(checkpoints, {"a": torch.ones(1)})
    assert restored is not None
    assert restored.record == record
    assert [x.hex() for x in restored.record["numbers"]] == [x.hex() for x in numbers]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), torch.ones(1)])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, world, value):
    checkpoints = Checkpoints(tmp_path, world)
    with pytest.raises(ConfigError, match="record.json"):
        checkpoints.save(1, {"a": torch.ones(1)}, {"value": value})
    checkpoints.wait()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["../a", "/a", "a/b", ".a", "", "manifest.json", "a.safetensors"])
def test_file_names_that_could_do_harm_are_refused(tmp_path, world, name):
    with pytest.raises(ConfigError, match=re.escape(repr(name))):
        Checkpoints(tmp_path, world).save(1, {"a": torch.ones(1)}, {}, {name: "text"})
