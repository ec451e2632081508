"""The world of one process, and modules that are sharded in it."""

import sys

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gidd.errors import ConfigError
from gidd.training.parallel import unsharded
from gidd.training.world import open_world


def test_tracebacks_of_one_process_have_no_rank_prefix():
    """torch replaces the hook by one that prints "[rank0]:" before every line."""
    before = sys.excepthook
    with open_world("cpu"):
        assert sys.excepthook is before
    assert sys.excepthook is before


@pytest.mark.parametrize("columns", [0, 2])
def test_a_shard_size_that_does_not_divide_the_ranks_is_refused(columns):
    message = rf"parallel.shard_size.* 1, got {columns}"
    with open_world("cpu") as world, pytest.raises(ConfigError, match=message):
        world.grid(columns)


def test_an_exception_leaves_a_sharded_module_sharded():
    with open_world("cpu") as world:
        module = fully_shard(nn.Linear(4, 2, bias=False), mesh=world.mesh)
        before = module.weight.full_tensor().clone()
        with pytest.raises(ZeroDivisionError), unsharded(module):
            assert not isinstance(module.weight, DTensor)
            raise ZeroDivisionError
        assert isinstance(module.weight, DTensor)
        assert torch.equal(module.weight.full_tensor(), before)
