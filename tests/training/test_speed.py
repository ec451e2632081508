"""FLOPs of a token against torch's own count, and the clock of a run."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gidd.models import SIZES, DiT
from gidd.training.reporting import speed
from gidd.training.reporting.speed import Speed, matmul_rate, training_flops_per_token

LENGTH, VOCAB_SIZE = 64, 1000


def counted(model, *inputs):
    """FLOPs per token of a step; torch does not count attention on CPUs, which is added."""
    with FlopCounterMode(display=False) as counter:
        model(*inputs).sum().backward()
    sizes = model.config
    attention = 12 * sizes.num_layers * sizes.width * LENGTH
    return counter.get_total_flops() / inputs[0].numel() + attention


@pytest.mark.slow
@pytest.mark.parametrize("size", ["nano", "micro", "tiny"])
def test_flops_of_a_token_are_those_that_torch_counts(size):
    network = DiT(SIZES[size](VOCAB_SIZE, LENGTH))
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    expected = counted(network, tokens, torch.zeros(2))
    assert training_flops_per_token(network, LENGTH) == pytest.approx(expected, rel=0.02)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test moves it."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


@pytest.mark.parametrize(("device", "size"), [("cpu", 1024), ("meta", 8192)])
def test_the_peak_is_measured_with_a_product_that_keeps_the_device_busy(device, size, monkeypatch):
    """Accelerators with a larger one: 1024^3 would take them as long as its launch."""
    ticks = itertools.count()  # every product takes one second
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(speed, "_wait", lambda device: None)
    assert matmul_rate(torch.device(device), torch.float32) == 2 * size**3


def test_an_exception_during_a_pause_leaves_the_clock_running(clock):
    """Time of the pause does not count, time after it does."""
    timer = Speed(tokens_per_step=100, flops_per_token=1.0, peak=1000.0)
    timer.step()
    clock.seconds = 2.0
    with pytest.raises(ZeroDivisionError), timer.paused():
        clock.seconds = 50.0
        raise ZeroDivisionError
    clock.seconds = 52.0
    metrics = timer.wall(steps_left=3)
    assert metrics["tokens_per_second"] == 100 / 4  # one step in 2 + 2 seconds
    assert metrics["mfu"] == pytest.approx(0.025)
    assert metrics["seconds"] == 52.0
    assert metrics["seconds_left"] == 3 * 52.0


def test_there_is_no_mfu_without_a_peak(clock):
    timer = Speed(tokens_per_step=100, flops_per_token=1.0, peak=None)
    clock.seconds = 1.0
    assert "mfu" not in timer.wall(steps_left=3)
