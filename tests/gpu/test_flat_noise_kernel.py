"""The kernel of flat noise draws the tokens of its definition."""

import pytest
import torch
from support.interpreted import interpret, needs_triton

from gidd.diffusion.categorical import draw, flat_entries
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.vocab import Vocab

LAST, FIRST, NONE = Vocab(50_258, mask_id=50_257), Vocab(300, mask_id=0), Vocab(70)
SCHEDULES = [
    HybridSchedule(LAST, 0.1),
    HybridSchedule(FIRST, 0.9),
    HybridSchedule(FIRST, 0.0),
    MaskedSchedule(LAST),
    UniformSchedule(LAST),
    UniformSchedule(NONE),
]


def different_tokens() -> list[str]:
    """Return the schedules for which the kernel differs from a draw from rows [B, 1 + V]."""
    from gidd.diffusion.kernels.random import launch_draw_flat

    t = torch.tensor([0.0, 1e-4, 0.5, 0.9999, 1.0])
    u = random_integers(0, Stream.NOISE, 0, torch.arange(len(t)), torch.arange(700))
    different = []
    for schedule in SCHEDULES:
        vocab, flat, alpha = schedule.vocab, schedule.flat_beta_pi(t), schedule.alpha(t)
        entries = flat_entries(alpha, flat.mask, flat.other)
        mask_id = -1 if vocab.mask_id is None else vocab.mask_id
        drawn = launch_draw_flat(entries, mask_id, vocab.size, u)
        if not torch.equal(drawn, draw(torch.cat([alpha[:, None], schedule.beta_pi(t)], 1), u)):
            different.append(repr(schedule))
        one = launch_draw_flat(entries[2:3], mask_id, vocab.size, u)  # one row for all
        if not torch.equal(one[2], drawn[2]):
            different.append(f"{schedule}, one row")
    return different


@pytest.mark.slow
@needs_triton
def test_tokens_are_equal():
    assert interpret(different_tokens) == []
