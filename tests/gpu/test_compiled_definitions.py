"""Definitions that torch compiles, as CUDA does, have the same bits; here compiled for a CPU."""

import pytest
import torch

from gidd.diffusion.categorical import _draw_flat, flat_entries
from gidd.diffusion.randomness import Stream, _random_integers, random_integers
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.vocab import Vocab

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
SAMPLES = torch.tensor([5, 2**31, 2**62 + 12345])
SEEDS, STEPS = torch.tensor([1, 2**40 + 3, -7]), torch.arange(3) * 1000
LAST, FIRST, NONE = Vocab(50_258, mask_id=50_257), Vocab(300, mask_id=0), Vocab(70)


def test_random_integers():
    compiled = torch.compile(_random_integers, dynamic=True)
    position = torch.arange(40) * 107_000_000  # up to 4.2e9
    addresses = [(2**63 - 1, None, 2**32 - 1, None), (0, SEEDS, 2**31, None)]
    for address in [*addresses, (-5, None, 0, STEPS), (0, SEEDS, 0, STEPS)]:
        numbers = *address[:2], int(Stream.TOKEN), *address[2:], SAMPLES, position
        assert torch.equal(compiled(*numbers), _random_integers(*numbers))


@pytest.mark.parametrize(
    "schedule",
    [HybridSchedule(LAST, 0.1), HybridSchedule(FIRST, 0.9), MaskedSchedule(LAST)]
    + [UniformSchedule(LAST), UniformSchedule(NONE)],
    ids=repr,
)
def test_flat_noise(schedule):
    t, vocab = torch.tensor([0.0, 1e-4, 0.5, 0.9999, 1.0]), schedule.vocab
    u = random_integers(0, Stream.NOISE, 0, torch.arange(len(t)), torch.arange(700))
    flat = schedule.flat_beta_pi(t)
    entries = flat_entries(schedule.alpha(t), flat.mask, flat.other)
    arguments = entries, -1 if vocab.mask_id is None else vocab.mask_id, vocab.size, u
    compiled = torch.compile(_draw_flat, dynamic=True)
    assert torch.equal(compiled(*arguments), _draw_flat(*arguments))
