"""The same run gives the same numbers on every layout of ranks."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import losses, reported, small_run, speeches, tiny_run, train_here

from gidd.training.parallel import DDP, FSDP

LAYOUTS = {
    "ddp-2": (2, DDP(), 1),
    "fsdp-1": (1, FSDP(), 1),
    "fsdp-2": (2, FSDP(), 1),
    "fsdp-4": (4, FSDP(), 1),
    "hsdp-2x2": (4, FSDP(shard_size=2), 1),
    "hsdp-2x2-accumulate-2": (4, FSDP(shard_size=2), 2),
    "ddp-3": (3, DDP(), 1),  # 8 samples over 3 ranks: 2, 3 and 3
    "accumulate-2": (1, DDP(), 2),
    "accumulate-4": (1, DDP(), 4),
    "ddp-2-accumulate-2": (2, DDP(), 2),
}
IN_CI = ("hsdp-2x2-accumulate-2", "ddp-3")
CASES = [(name, 4) for name in IN_CI]
CASES += [pytest.param(name, 50, marks=pytest.mark.long) for name in LAYOUTS]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), documents=40)


def run_of(data, steps, **changes):
    """The network `micro` for 50 steps at night, a smaller one in CI."""
    return (small_run if steps == 50 else tiny_run)(data, steps=steps, **changes)


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory, data):
    """The uninterrupted run in a single process, by its number of steps."""

    @cache
    def run(steps):
        out = tmp_path_factory.mktemp("alone")
        run_ranks(train_here, 1, run_of(data, steps), out)
        return out

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), CASES)
def test_every_layout_has_the_losses_of_a_single_process(name, steps, data, run_alone, tmp_path):
    size, parallel, accumulate = LAYOUTS[name]
    alone = run_alone(steps)
    run = run_of(data, steps, accumulate=accumulate)
    run_ranks(train_here, size, run, tmp_path, parallel)
    expected = losses(alone)
    assert len(expected) == steps
    torch.testing.assert_close(losses(tmp_path), expected, rtol=1e-4, atol=0)
    # and all other metrics: fractions of tokens exactly, because they are counts
    for ours, theirs in zip(reported(tmp_path), reported(alone), strict=True):
        if ours["kind"] == "training":
            assert ours["share_masked"] == theirs["share_masked"]
        assert ours["nelbo"] == pytest.approx(theirs["nelbo"], rel=1e-4)


@pytest.mark.slow
def test_recomputed_activations_change_nothing(data, tmp_path):
    run = tiny_run(data, steps=10)
    run_ranks(train_here, 1, run, tmp_path / "kept")
    run = replace(run, backbone=run.backbone.changed(checkpoint_activations=True))
    run_ranks(train_here, 2, run, tmp_path / "recomputed", FSDP())
    kept, recomputed = losses(tmp_path / "kept"), losses(tmp_path / "recomputed")
    torch.testing.assert_close(recomputed, kept, rtol=1e-4, atol=0)
