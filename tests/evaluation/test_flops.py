"""FLOPs: by hand, against torch's count of matrix products, and against the count for MFU."""

from dataclasses import replace

import pytest
import torch
from support.synthetic_runs import run_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gidd.common.parts import part
from gidd.errors import ConfigError
from gidd.evaluation.scaling.flops import ForwardFlops, baseline_flops, dit_flops, run_flops
from gidd.models import AutoregressiveModel, DiT, DiTConfig
from gidd.training.reporting.speed import training_flops_per_token

LENGTH = 8
SIZE = DiTConfig(vocab_size=10, max_length=LENGTH, width=4, num_layers=2, num_heads=2, time_width=3)


def counted(model, *inputs):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(*inputs)
    return counter.get_total_flops()


def test_parts_by_hand():
    """Hoffmann et al. (2022), App. F, with L = 8, D = 4, V = 10, H = 2 and two layers."""
    assert dit_flops(SIZE, LENGTH) == ForwardFlops(
        embedding=2 * 8 * 10 * 4,
        qkv=2 * (2 * 3 * 8 * 4 * 4),
        scores=2 * (2 * 8 * 8 * 4),
        softmax=2 * (3 * 2 * 8 * 8),
        values=2 * (2 * 8 * 8 * 4),
        output=2 * (2 * 8 * 4 * 4),
        mlp=2 * (2 * 8 * (4 * 16 + 4 * 16)),
        logits=2 * 8 * 4 * 10,
        conditioning=2 * 256 * 3 + 2 * 3 * 3 + 2 * (2 * 3 * 24) + 2 * 3 * 8,
    )
    assert dit_flops(SIZE, LENGTH).training == 3 * sum(dit_flops(SIZE, LENGTH))


def test_matrix_products_of_a_dit_are_those_that_torch_counts():
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    assert dit_flops(SIZE, LENGTH).matmuls == counted(DiT(SIZE), tokens, torch.zeros(1))


def test_matrix_products_of_the_baseline_are_those_that_torch_counts():
    pytest.importorskip("transformers", reason="the baseline needs the extra `hf`")
    size = replace(SIZE, width=32, num_heads=2)
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    found = counted(AutoregressiveModel(size), tokens)
    assert baseline_flops(size, LENGTH).matmuls == found


def test_the_count_for_mfu_leaves_out_embeddings_and_softmax():
    size = DiTConfig.micro(1000, 64)
    flops = dit_flops(size, 64)
    expected = 3 * flops.matmuls / 64
    assert training_flops_per_token(DiT(size), 64) == pytest.approx(expected, rel=0.01)


def test_the_budget_of_the_paper():
    """Base models were trained on 131 billion tokens (App. E): 3.3e20 FLOPs (App. A).

    Without embeddings it would be 3.0e20.
    """
    per_token = dit_flops(DiTConfig.base(50258, 512), 512).training / 512
    assert per_token * 131e9 == pytest.approx(3.3e20, rel=0.03)


def test_networks_whose_flops_are_unknown_are_refused():
    backbone = part("backbone", "llama-bidirectional", width=32, num_layers=2, num_heads=2)
    with pytest.raises(ConfigError, match="backbone must be dit"):
        run_flops(replace(run_config(), backbone=backbone), 300)
