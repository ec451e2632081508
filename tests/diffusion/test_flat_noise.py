"""Flat noise: two numbers for each time are the rows over the vocabulary, bit for bit."""

import pytest
import torch

from gidd.diffusion.categorical import draw, draw_flat, flat_entries
from gidd.diffusion.process import (
    flat_transition,
    inflow_at,
    noise,
    noise_at,
    prior,
    sample_prior,
    transition,
    transition_noise_at,
)
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    FirstReleaseSchedule,
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.diffusion.schedules.curves import Cosine, mask_noise
from gidd.diffusion.schedules.mixture import LinearAmount, MixtureComponent
from gidd.vocab import Vocab

LAST, FIRST, NONE = Vocab(1000, mask_id=999), Vocab(300, mask_id=0), Vocab(70)
SCHEDULES: list[MixingSchedule] = [
    *(HybridSchedule(LAST, p) for p in (0.0, 0.01, 0.2, 0.9)),
    HybridSchedule(FIRST, 0.1, gamma=1.5),
    MaskedSchedule(LAST),
    MaskedSchedule(FIRST, Cosine()),
    UniformSchedule(NONE),
    UniformSchedule(LAST, Cosine()),
    FirstReleaseSchedule(LAST, 0.2),
    FirstReleaseSchedule(LAST, 0.0),
]
TIMES = [1e-6, 1e-4, 0.1, 1 / 3, 0.5, 0.9, 0.9999]
flat_schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def uniforms(rows: int, length: int) -> torch.Tensor:
    return random_integers(1, Stream.NOISE, 0, torch.arange(rows), torch.arange(length))


def equal_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@dtypes
@flat_schedules
def test_two_numbers_are_the_rows(schedule, dtype):
    t = torch.tensor(TIMES, dtype=dtype)
    every = torch.arange(schedule.vocab.size).expand(len(t), -1)
    assert equal_bits(noise_at(schedule, t, every), schedule.beta_pi(t))
    assert equal_bits(inflow_at(schedule, t, every), schedule.inflow(t))
    flat = schedule.flat_beta_pi(t)
    torch.testing.assert_close(flat.total(schedule.vocab), schedule.beta_pi(t).sum(-1))
    s = t / 3
    expected = transition(schedule, s, t).beta_pi
    assert equal_bits(transition_noise_at(schedule, s, t, every), expected)


@dtypes
@flat_schedules
def test_noise_is_drawn_as_from_the_rows(schedule, dtype):
    t = torch.tensor([0.0, *TIMES, 1.0], dtype=dtype)
    x = torch.arange(3000).expand(len(t), -1) % schedule.vocab.size
    u = uniforms(*x.shape)
    choice = draw(torch.cat([schedule.alpha(t)[:, None], schedule.beta_pi(t)], -1), u)
    assert equal_bits(noise(schedule, t, x, u), torch.where(choice == 0, x, choice - 1))
    one = torch.ones((), dtype=dtype)
    expected = draw(prior(schedule, one).expand(len(u), -1), u)
    assert equal_bits(sample_prior(schedule, u, dtype), expected)


@pytest.mark.parametrize("mask_id", [None, 0, 3, 6])
def test_the_ends_of_every_entry(mask_id):
    """The smallest and largest uniforms of each token, where a division could be off by one."""
    keep, mask, other = 0.25, 0.0 if mask_id is None else 0.125, 0.0625
    rows = torch.full((1, 8), other)
    rows[0, 0] = keep
    if mask_id is not None:
        rows[0, mask_id + 1] = mask
    ends = (rows.cumsum(-1) / rows.sum() * 2**62).long()
    u = torch.cat([torch.tensor([[0, 2**62 - 1]]), *(ends + k for k in (-(2**20), 0, 2**20))], 1)
    u = u.clamp(0, 2**62 - 1)
    numbers = (torch.tensor([value]) for value in (keep, mask, other))
    assert torch.equal(draw_flat(flat_entries(*numbers), 7, mask_id, u), draw(rows, u))


def test_numbers_that_are_not_finite_give_a_token():
    entries = flat_entries(*(torch.tensor([torch.nan]) for _ in range(3)))
    drawn = draw_flat(entries, 7, 3, uniforms(1, 50))
    assert ((drawn >= 0) & (drawn <= 7)).all()


def test_noise_that_only_masks_is_known_to_do_so():
    t = torch.tensor(TIMES)
    for schedule in (MaskedSchedule(LAST), HybridSchedule(LAST, 0.0)):
        assert schedule.flat_beta_pi(t).other is None
        assert schedule.flat_inflow(t).other is None
        assert flat_transition(schedule, t / 2, t).other is None
    assert HybridSchedule(LAST, 0.1).flat_beta_pi(t).other is not None


def test_other_noise_is_not_flat():
    mixture = MixtureSchedule(LAST, (MixtureComponent(mask_noise(LAST), LinearAmount()),))
    t = torch.tensor(TIMES)
    assert mixture.flat_beta_pi(t) is None
    assert mixture.flat_inflow(t) is None
    assert flat_transition(mixture, t / 2, t) is None
    every = torch.arange(LAST.size).expand(len(t), -1)
    assert equal_bits(noise_at(mixture, t, every), mixture.beta_pi(t))
    expected = transition(mixture, t / 2, t).beta_pi
    assert equal_bits(transition_noise_at(mixture, t / 2, t, every), expected)
