"""How many kernels a step launches on a GPU, and how often the host waits for it.

Counted on the pretended device. A budget that is exceeded makes a GPU slower: at 5 microseconds a
launch, 200 more are a millisecond of a step of 8.
"""

import pytest
import torch
from support.launches import LaunchCounts
from support.pretended_device import move_to_pretended, pretended_cuda
from support.train_steps import run_step, step_of

from gidd.data.batch import Batch
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting import DynamicWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.vocab import Vocab

GPT2 = 50_258
LENGTH = 512
DEVICE = torch.device("cuda:0")


def denoiser_of(vocab_size: int, layers: int, num_rows: int) -> Denoiser:
    torch.manual_seed(0)
    config = DiTConfig(
        vocab_size=num_rows, max_length=LENGTH, width=48, num_layers=layers, num_heads=4
    )
    return Denoiser(DiT(config), Vocab(vocab_size, mask_id=vocab_size - 1))


def schedule_of(noise: str, vocab: Vocab):
    return MaskedSchedule(vocab) if noise == "masked" else HybridSchedule(vocab, 0.1)


def training_forward(noise: str, vocab_size: int = 1000, layers: int = 1, samples: int = 8):
    """Count a micro-step of training, the head's gradients included: 8 x 512 tokens, bf16."""
    denoiser = denoiser_of(vocab_size, layers, vocab_size)
    schedule = schedule_of(noise, denoiser.vocab)
    step = step_of(
        denoiser,
        schedule,
        DynamicWeighting(schedule),
        token_bytes=torch.ones(vocab_size, dtype=torch.int64),
    )
    move_to_pretended(step.model)
    with pretended_cuda() as counts:
        batch = Batch(
            torch.randint(0, vocab_size - 1, (samples, LENGTH)),
            torch.ones(samples, LENGTH, dtype=torch.bool),
            torch.arange(samples),
        ).to(DEVICE)
        for _ in range(2):  # the first fills caches
            counts.reset()
            with torch.autocast("cuda", torch.bfloat16):
                run_step(step, batch, 0, samples)
    return counts


def require(counts: LaunchCounts, launches: int, waits: int) -> None:
    assert counts.num_launches <= launches, counts.report()
    assert counts.num_waits <= waits, counts.report()
    assert not counts.misaligned, counts.report()


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "waits"), [("hybrid", 0), ("masked", 1)])
def test_training(noise, waits):
    one, two = training_forward(noise), training_forward(noise, layers=2)
    require(one, 280, waits)
    require(two, one.num_launches + 36, waits)


@pytest.mark.long
@pytest.mark.parametrize(("noise", "waits"), [("hybrid", 0), ("masked", 1)])
def test_training_with_the_vocabulary_of_gpt2(noise, waits):
    counts = training_forward(noise, GPT2)
    require(counts, 280, waits)
    assert counts.num_launches == training_forward(noise).num_launches
