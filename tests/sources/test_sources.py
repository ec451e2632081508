"""Samples, likelihoods, entropies and posteriors of sources, against enumeration."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.strategies import SCHEDULE_TYPES, schedule_from_unit_cube, unit

from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.errors import DataError
from gidd.sources import HiddenMarkovSource, MarkovSource, Source
from gidd.sources.base import stationary_distribution
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab

SOURCES = (MarkovSource, HiddenMarkovSource)


def small(kind: type[Source], seed: int = 0) -> Source:
    if kind is MarkovSource:
        return MarkovSource.random(3, 0.5, seed)
    return HiddenMarkovSource.random(2, 3, 0.5, seed)


@pytest.mark.parametrize("kind", SOURCES)
def test_probabilities_of_all_texts_sum_to_one(kind):
    world = SmallWorld(small(kind), MaskedSchedule(Vocab(4, mask_id=3)), length=4)
    assert float(world.clean_distribution.sum()) == pytest.approx(1, abs=1e-12)


def test_log_prob_by_hand():
    source = MarkovSource(
        torch.tensor([0.2, 0.8], dtype=torch.float64),
        torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64),
    )
    x = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1]])
    expected = torch.tensor([0.8 * 0.4 * 0.9 * 0.1, 0.2 * 0.1 * 0.6 * 0.6], dtype=torch.float64)
    torch.testing.assert_close(source.log_prob(x).exp(), expected, rtol=1e-12, atol=0)
    # the same chain behind a noiseless emission
    hidden = HiddenMarkovSource(source.initial, source.transition, torch.eye(2).double())
    torch.testing.assert_close(hidden.log_prob(x), source.log_prob(x))


def test_hidden_markov_log_prob_sums_over_states():
    source = HiddenMarkovSource.random(3, 4, 0.7, 5)
    x = torch.tensor([[2, 0, 3]])
    total = 0.0
    for states in np.ndindex(3, 3, 3):
        p = source.initial[states[0]] * source.emission[states[0], x[0, 0]]
        for i in (1, 2):
            p = (
                p
                * source.transition[states[i - 1], states[i]]
                * source.emission[states[i], x[0, i]]
            )
        total += float(p)
    assert float(source.log_prob(x).exp()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("kind", SOURCES)
def test_samples_follow_the_source(kind):
    """Frequencies of all 27 sequences of length 3, to 5 standard errors; samples by index."""
    source, num = small(kind), 100_000
    world = SmallWorld(source, MaskedSchedule(Vocab(4, mask_id=3)), length=3)
    x = source.sample(3, torch.arange(num), 3)
    frequency = torch.bincount((x * torch.tensor([9, 3, 1])).sum(-1), minlength=27) / num
    error = (world.clean_distribution * (1 - world.clean_distribution) / num).sqrt()
    assert ((frequency - world.clean_distribution).abs() < 5 * error + 1e-12).all()
    assert torch.equal(source.sample(3, torch.tensor([77, 5]), 3), x[[77, 5]])


def test_markov_entropy():
    """Closed forms against enumeration and against the mean of -log p."""
    source = MarkovSource.random(3, 0.5)
    world = SmallWorld(source, MaskedSchedule(Vocab(4, mask_id=3)), length=4)
    assert source.entropy(4) == pytest.approx(world.entropy, rel=1e-12)
    rate = source.entropy_rate()
    assert rate.standard_error == 0
    assert source.entropy(2001) - source.entropy(2000) == pytest.approx(rate.nats, rel=1e-9)
    stationary = stationary_distribution(source.transition)
    torch.testing.assert_close(stationary @ source.transition, stationary)


@pytest.mark.slow
def test_hidden_markov_entropy_rate():
    """With a noiseless emission it is a Markov chain, whose rate is known."""
    markov = MarkovSource.random(5, 0.5)
    hidden = HiddenMarkovSource(markov.initial, markov.transition, torch.eye(5).double())
    rate = hidden.entropy_rate()
    assert 0 < rate.standard_error < 0.02
    assert abs(rate.nats - markov.entropy_rate().nats) < 5 * rate.standard_error
    # between the entropy of the token given the state before, and of the token alone
    hidden = HiddenMarkovSource.random(4, 6, 0.3)
    rate = hidden.entropy_rate()
    stationary = stationary_distribution(hidden.transition)
    lowest = stationary @ torch.special.entr(hidden.transition @ hidden.emission).sum(-1)
    highest = torch.special.entr(stationary @ hidden.emission).sum()
    assert float(lowest) - 5 * rate.standard_error < rate.nats < float(highest)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("schedule_type", SCHEDULE_TYPES)
@given(cube=st.tuples(unit, unit, unit), time=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_posteriors_equal_enumeration(kind, schedule_type, cube, time, seed):
    """Forward-backward against enumeration, ordinary and leave-one-out, for any schedule."""
    source = small(kind, seed)
    schedule = schedule_from_unit_cube(schedule_type, Vocab(4, mask_id=3), cube)
    world = SmallWorld(source, schedule, length=3)
    possible = world.noisy_distribution(time) > 1e-9
    z, t = world.noisy[possible], world.times(time)[possible]
    torch.testing.assert_close(
        source.leave_one_out(schedule, t, z), world.leave_one_out(z, t), rtol=0, atol=1e-10
    )
    torch.testing.assert_close(
        source.posterior(schedule, t, z), world.posterior(z, t), rtol=0, atol=1e-10
    )


def test_impossible_tokens_are_refused():
    """Masked diffusion cannot turn 0 into 1, and this source never emits 1 after 0."""
    source = MarkovSource(torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    schedule = MaskedSchedule(Vocab(3, mask_id=2))
    with pytest.raises(DataError, match="probability zero"):
        source.leave_one_out(schedule, torch.tensor([0.5]), torch.tensor([[0, 1, 0]]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posteriors_at_full_size(dtype):
    """V = 1,000 and L = 512: nothing underflows."""
    markov = MarkovSource.random(1000, 0.05)
    markov = MarkovSource(markov.initial.to(dtype), markov.transition.to(dtype))
    hidden = HiddenMarkovSource.random(100, 1000, 0.1)
    hidden = HiddenMarkovSource(
        *(p.to(dtype) for p in (hidden.initial, hidden.transition, hidden.emission))
    )
    schedule = HybridSchedule(Vocab(1001, mask_id=1000), 0.2)
    for source in (markov, hidden):
        x = source.sample(0, torch.arange(4), 512)
        t = torch.tensor([0.01, 0.3, 0.6, 0.99], dtype=dtype)
        u = random_integers(0, Stream.NOISE, 0, torch.arange(4), torch.arange(512))
        z = noise(schedule, t, x, u)
        x_theta = source.leave_one_out(schedule, t, z)
        assert x_theta.shape == (4, 512, 1001)
        torch.testing.assert_close(
            x_theta.sum(-1), torch.ones(4, 512, dtype=dtype), rtol=0, atol=1e-4
        )
        # the clean token is more likely the less noise there is
        nll = -x_theta.gather(-1, x[..., None]).clamp_min(1e-30).log().mean((1, 2))
        assert (nll.diff() > 0).all()
