"""The fraction of wrong tokens among visible ones, and the time at which it is a given number."""

import pytest
import torch
from hypothesis import given, settings
from support.strategies import data_tokens, schedules

from gidd.diffusion.error_rate import error_rate_at, time_at_error_rate, visible_noise
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.vocab import Vocab

TIMES = torch.tensor([1e-4, 0.01, 0.3, 0.5, 0.9], dtype=torch.float64)
HYBRID = HybridSchedule(Vocab(6, mask_id=2), 0.2)


def test_hand_computed_shares():
    c = 2 * 0.2 / 0.8 * (TIMES * (1 - TIMES)).sqrt()
    torch.testing.assert_close(error_rate_at(HYBRID, TIMES), c / (1 - TIMES + c) * 4 / 5)
    uniform = UniformSchedule(Vocab(5, mask_id=None))
    torch.testing.assert_close(error_rate_at(uniform, TIMES), TIMES * 4 / 5)
    assert not error_rate_at(MaskedSchedule(Vocab(5, mask_id=4)), TIMES).any()
    # by hand at t = 1/2: c = 1/2 * 1/2, and 1/4 over 1/2 + 1/4 is 1/3 of the visible tokens
    half = torch.tensor([0.5], dtype=torch.float64)
    assert float(error_rate_at(HYBRID, half)) == pytest.approx(1 / 3 * 4 / 5, abs=1e-15)


@settings(max_examples=40)
@given(schedules())
def test_it_is_the_probability_of_a_wrong_visible_token(schedule):
    """By its definition, for every schedule: the mean over all clean tokens, never decreasing."""
    t = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    noise, data = schedule.beta_pi(t), data_tokens(schedule.vocab)
    wrong = torch.stack([noise[:, data[data != x]].sum(-1) for x in data]).mean(0)
    found = error_rate_at(schedule, t)
    expected = wrong / (schedule.alpha(t) + noise[:, data].sum(-1))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert (found.diff() >= -1e-12).all()


@settings(max_examples=40)
@given(schedules())
def test_visible_noise_is_a_distribution(schedule):
    keep, noise = visible_noise(schedule, TIMES)
    torch.testing.assert_close(keep + noise.sum(-1), torch.ones(5).double())
    if schedule.vocab.mask_id is not None:
        assert not noise[:, schedule.vocab.mask_id].any()
    share = error_rate_at(schedule, TIMES)
    if (share > 1e-9).all():  # the same amount of noise, given or implied
        torch.testing.assert_close(visible_noise(schedule, TIMES, share), (keep, noise))
        size = schedule.vocab.num_data_tokens
        keep, noise = visible_noise(schedule, TIMES, 0.001)
        expected = torch.full((5,), 1 - 0.001 * size / (size - 1))
        torch.testing.assert_close(keep, expected.double())
        torch.testing.assert_close(keep + noise.sum(-1), torch.ones(5).double())


@pytest.mark.slow
@pytest.mark.parametrize("size", [6, 700, 50_258])
def test_time_at_error_rate_is_the_inverse(size):
    for schedule in (
        HybridSchedule(Vocab(size, mask_id=2), 0.3),
        HybridSchedule(Vocab(size, mask_id=2), 0.1, gamma=1.7),
        UniformSchedule(Vocab(size, mask_id=None)),
    ):
        found = time_at_error_rate(schedule, error_rate_at(schedule, TIMES), 1e-6)
        torch.testing.assert_close(found, TIMES, rtol=1e-9, atol=1e-13)
        alone = time_at_error_rate(schedule, float(error_rate_at(schedule, TIMES[2:3])), 1e-6)
        torch.testing.assert_close(alone, found[2:3], rtol=1e-12, atol=0)


def test_shares_outside_of_the_range_give_the_nearest_time():
    shares = torch.tensor([-1.0, 0.0, 1e-9, 0.5, 0.99, 2.0])
    found = time_at_error_rate(HYBRID, shares, 1e-3, 0.4)
    assert found.tolist()[:3] == [1e-3] * 3
    assert found.tolist()[3:] == [0.4] * 3
    assert found.dtype == torch.float64
    masked = MaskedSchedule(Vocab(5, mask_id=4))
    assert time_at_error_rate(masked, torch.tensor([0.0, 0.1]), 1e-3, 0.4).tolist() == [1e-3, 0.4]


def test_the_times_of_the_table():
    """The matched times behind the figures of `tests/sampling/test_posterior.py`."""
    schedule = HybridSchedule(Vocab(51, mask_id=50), 0.2)
    rates = torch.tensor([0.02, 0.05, 0.1, 0.2], dtype=torch.float64)
    expected = torch.tensor([0.001733102, 0.01142988, 0.04911591, 0.20822488]).double()
    torch.testing.assert_close(time_at_error_rate(schedule, rates), expected, rtol=1e-6, atol=0)


def test_every_device(device):
    dtype = torch.float32 if device.type == "mps" else torch.float64
    t = TIMES.to(device, dtype)
    share = error_rate_at(HYBRID, t)
    assert share.device.type == device.type
    found = time_at_error_rate(HYBRID, share)
    assert found.device.type == device.type
    torch.testing.assert_close(found, t, rtol=1e-5, atol=1e-7)
