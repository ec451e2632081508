"""The world of one process, and modules that are sharded in it."""

import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.pretended_device import pretended_cuda
from support.ranks import run_ranks, wait_for_all_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gidd.errors import ConfigError
from gidd.training.parallel import unsharded
from gidd.training.world import StepStats, open_world


def test_tracebacks_of_one_process_have_no_rank_prefix():
    """torch replaces the hook by one that prints "[rank0]:" before every line."""
    before = sys.excepthook
    with open_world("cpu"):
        assert sys.excepthook is before
    assert sys.excepthook is before


def in_the_group_of_others():
    """As Accelerate and Ray Train open one; several runs in it must not read each other's keys."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    sizes, group = [], dist.group.WORLD
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        del os.environ[name]
    for _ in range(2):
        with open_world("cpu", 60) as world:
            assert not world.store.check(["done"])
            sizes.append(world.sum([1.0, world.rank]))
            world.store.set("done", "")
            wait_for_all_ranks(world)
    assert dist.group.WORLD is group  # left open
    dist.destroy_process_group()
    return sizes


def test_an_open_process_group_is_used_and_stays_open():
    assert run_ranks(in_the_group_of_others, 2) == [[[2.0, 1.0]] * 2] * 2


@pytest.mark.parametrize("columns", [0, 2])
def test_a_shard_size_that_does_not_divide_the_ranks_is_refused(columns):
    message = rf"parallel.shard_size.* 1, got {columns}"
    with open_world("cpu") as world, pytest.raises(ConfigError, match=message):
        world.device_mesh_2d(columns)


@pytest.mark.parametrize("flag", [False, True])
def test_statistics_of_a_step_are_those_that_were_given(flag):
    with open_world("cpu") as world:
        stats = world.reduce_step_stats(torch.tensor([1.5, 2.0**24 + 2]), torch.tensor(0.25), flag)
        assert stats.read() == ([1.5, 2.0**24 + 2], 0.25, flag)
        assert stats.read() == ([1.5, 2.0**24 + 2], 0.25, flag)


def test_the_host_waits_for_a_gpu_only_when_statistics_are_read():
    with pretended_cuda() as counts:
        sums = torch.arange(3, dtype=torch.float64, device="cuda:0")
        stats = StepStats(sums, torch.full((), 0.5, dtype=torch.float64, device="cuda:0"), sums[1])
        assert counts.num_waits == 0, counts.report()
        assert stats.read() == ([0.0, 1.0, 2.0], 0.5, True)
        assert counts.num_waits == 1, counts.report()


def flag_on_one_rank():
    with open_world("cpu", 600) as world:
        sums = torch.tensor([1.0 + world.rank, 2.0**24])
        return world.reduce_step_stats(sums, torch.tensor(0.5), world.rank == 1).read()


def test_statistics_of_a_step_are_added_over_ranks_in_float64():
    expected = ([6.0, 3 * 2.0**24], 0.5, True)
    assert run_ranks(flag_on_one_rank, 3) == [expected] * 3


def test_an_exception_leaves_a_sharded_module_sharded():
    with open_world("cpu") as world:
        module = fully_shard(nn.Linear(4, 2, bias=False), mesh=world.mesh)
        before = module.weight.full_tensor().clone()
        with pytest.raises(ZeroDivisionError), unsharded(module):
            assert not isinstance(module.weight, DTensor)
            raise ZeroDivisionError
        assert isinstance(module.weight, DTensor)
        assert torch.equal(module.weight.full_tensor(), before)
