"""Operations of a token and of the machine, against torch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gidd.models import SIZES, AutoregressiveModel, DiT
from gidd.training.reporting import speed
from gidd.training.reporting.speed import matmul_rate, training_flops_per_token

LENGTH, VOCAB_SIZE = 64, 1000


def counted(model, *inputs):
    """Operations a token of a step; torch does not count attention on CPUs, which is added."""
    with FlopCounterMode(display=False) as counter:
        model(*inputs).sum().backward()
    sizes = model.config
    attention = 12 * sizes.num_layers * sizes.width * LENGTH
    return counter.get_total_flops() / inputs[0].numel() + attention


@pytest.mark.parametrize("size", ["nano", "micro", "tiny"])
def test_operations_of_a_token_are_those_that_torch_counts(size):
    config = SIZES[size](VOCAB_SIZE, LENGTH)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    expected = counted(DiT(config), tokens, torch.zeros(2))
    assert training_flops_per_token(config, LENGTH) == pytest.approx(expected, rel=0.02)


def test_operations_of_a_token_of_the_baseline():
    """It is told no time: all of its weights meet every token."""
    pytest.importorskip("transformers", reason="the baseline needs the extra `hf`")
    config = SIZES["micro"](VOCAB_SIZE, LENGTH)
    expected = counted(AutoregressiveModel(config), torch.zeros(2, LENGTH, dtype=torch.int64))
    found = training_flops_per_token(config, LENGTH, timed=False)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("device", "size"), [("cpu", 1024), ("meta", 8192)])
def test_the_machine_is_measured_by_a_product_that_keeps_it_busy(device, size, monkeypatch):
    """Accelerators by a larger one: 1024^3 would take them as long as to launch it."""
    monkeypatch.setattr(speed, "_wait", lambda device: None)
    with FlopCounterMode(display=False) as counter:
        matmul_rate(torch.device(device), torch.float32)
    assert counter.get_total_flops() == 5 * 2 * size**3
