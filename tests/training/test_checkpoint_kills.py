"""`kill -9` at any moment leaves only complete checkpoints, and loses at most one of them."""

import pickle
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_states import restore
from support.kill_training import hold_while_saving
from support.ranks import CONTEXT, start_ranks, wait_for_all_ranks
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from gidd.training.checkpoints import Checkpoints
from gidd.training.checkpoints.folder import damage, steps_in
from gidd.training.world import World, open_world

LONG = ((1, 50), (2, 20))


def state(world: World, step: int) -> dict[str, Tensor]:
    """1.2 MB that depend on the step: a sharded and a replicated tensor."""
    sharded = distribute_tensor(torch.full((200, 1000), float(step)), world.mesh, [Shard(0)])
    return {"sharded": sharded, "replicated": torch.full((100_000,), float(step))}


def save_until_killed(folder: Path, begun: Any, ready: Any) -> None:
    """A run that does nothing but save; `begun` is the last step whose save has begun."""
    with open_world("cpu", timeout=600) as world, Checkpoints(folder, world) as checkpoints:
        assert not list(folder.glob(".*"))
        tensors = state(world, -1)
        restored = restore(checkpoints, tensors)
        step = restored.step if restored else 0
        if restored:
            assert restored.notes == []
            assert restored.record == {"step": step}
            for name, expected in state(world, step).items():
                held = [
                    t.to_local() if isinstance(t, DTensor) else t for t in (tensors[name], expected)
                ]
                assert torch.equal(*held)
        assert step >= begun.value - 1
        wait_for_all_ranks(world)
        if world.is_rank_zero:
            ready.set()
        while True:
            step += 1
            for tensor in tensors.values():
                tensor.fill_(step)
            checkpoints.save(step, tensors, {"step": step}, {"run.yaml": f"{step}"})
            if world.is_rank_zero:
                begun.value = step
            time.sleep(0.01)


def kill_often(folder: Path, ranks: int, kills: int, draw: random.Random) -> Iterator[str]:
    """Start, kill and start again; yields the kind of moment of each kill."""
    begun = CONTEXT.Value("q", 0, lock=False)  # a killed process would keep the lock
    # any time from the start on may be while it reads, or deletes what the last kill left
    moments = {"start": max(1, kills // 10), "any": 3 * kills // 10}  # of 2: start and save
    moments["save"] = kills - sum(moments.values())
    for moment in draw.sample(list(moments), kills, counts=list(moments.values())):
        ready = CONTEXT.Event()
        processes, pipes = start_ranks(save_until_killed, ranks, folder, begun, ready)
        if moment != "start":
            assert ready.wait(300), [_last_words(pipe) for pipe in pipes if pipe.poll()]
            _wait_until_begun(begun, begun.value + draw.randint(1, 3))
        if moment == "any":
            time.sleep(draw.uniform(0, 0.1))
        victims = draw.sample(processes, ranks)
        if moment == "save":
            hold_while_saving(folder, [victim.pid for victim in victims], draw)
        for victim in victims:  # those after the first may find out before they go too
            victim.kill()
            time.sleep(draw.choice([0, 0.05]))
        for process, pipe in zip(processes, pipes, strict=True):
            process.join()
            assert "AssertionError" not in _last_words(pipe)
            pipe.close()
        assert victims[0].exitcode == -signal.SIGKILL
        for step in steps_in(folder):
            assert damage(folder / f"step-{step:09d}", step, 0, 1) == []
        yield moment


def _last_words(pipe: Connection) -> str:
    """Traceback of a rank that failed; nothing if it was killed."""
    try:
        return pickle.loads(pipe.recv_bytes())[1]
    except EOFError:
        return ""


def _wait_until_begun(begun: Any, step: int) -> None:
    end = time.monotonic() + 300
    while begun.value < step:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kills"), [(2, 2), *(pytest.param(*c, marks=pytest.mark.long) for c in LONG)]
)
def test_no_kill_leaves_a_visible_checkpoint_that_is_incomplete(tmp_path, ranks, kills):
    folder = tmp_path / "run"
    folder.mkdir()
    met = list(kill_often(folder, ranks, kills, random.Random(ranks)))
    assert len(met) == kills
    assert met.count("save") >= kills / 2
    # each kill but those at a start came at least one save later, and lost at most one
    assert max(steps_in(folder)) >= kills - met.count("start") - 1
