"""The estimated fraction of wrong tokens: its error, its interval, and what it costs."""

import pytest
import torch
from support.noisy_texts import HYBRID, LENGTH, SOURCE, UNIFORM, as_windows, exact_reader, noisy
from support.sampling_worlds import random_denoiser

from gidd.diffusion.error_rate import error_rate_at, time_at_error_rate
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import DataError
from gidd.pipeline import NoiseLevel, estimate_noise
from gidd.pipeline.noise_level import MAX_WINDOWS
from gidd.sampling import (
    FunctionNetwork,
    Session,
    TextWindows,
    WindowReader,
    WindowTokens,
    run_sync,
)
from gidd.vocab import Vocab

LOWEST = float(error_rate_at(HYBRID, torch.tensor([1e-4]).double()))


def estimated(reader, windows, **options) -> NoiseLevel:
    return run_sync(estimate_noise(reader, windows, **options))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (HYBRID, (0.02, 0.1, 0.4)),
        pytest.param(HYBRID, (0.05, 0.2), marks=pytest.mark.slow),
        pytest.param(UNIFORM, (0.02, 0.05, 0.1, 0.2, 0.4), marks=pytest.mark.long),
    ],
    ids=["hybrid", "more", "uniform"],
)
def test_the_estimate_is_within_a_tenth_of_the_truth(schedule, rates):
    """400 texts of 64 tokens, all together."""
    reader = exact_reader(schedule, 400)
    x = SOURCE.sample(1, torch.arange(400), LENGTH)
    for rate in rates:
        found = estimated(reader, as_windows(noisy(x, rate)), max_windows=400)
        assert found.error_rate == pytest.approx(rate, rel=0.1)
        assert found.low < found.error_rate < found.high
        assert found.high - found.low < 0.3 * rate
        expected = time_at_error_rate(schedule, found.error_rate)
        assert found.time == pytest.approx(float(expected))


@pytest.mark.parametrize("rate", [0.0, 0.001])
def test_clean_text_is_estimated_as_clean(rate):
    """Also between 0 and the noise at the smallest time of the network."""
    x = SOURCE.sample(2, torch.arange(64), LENGTH)
    found = estimated(exact_reader(HYBRID, 64), as_windows(noisy(x, rate, seed=4)))
    assert rate < LOWEST / 4
    assert found.low <= rate <= found.high < rate + 0.004
    assert found.error_rate == pytest.approx(rate, abs=0.0006)
    assert found.time == 1e-4
    assert found.forward_passes == 3 * 64
    assert (found.low == 0) == (rate == 0)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
def test_the_interval_covers_the_truth_as_often_as_it_says(rate):
    """200 documents of 8 windows of 64 tokens."""
    reader = exact_reader(HYBRID, 24)
    z = noisy(SOURCE.sample(5, torch.arange(1600), LENGTH), rate, seed=1)
    found = [estimated(reader, as_windows(part)) for part in z.split(8)]
    assert 0.9 <= sum(level.low <= rate <= level.high for level in found) / 200 <= 0.98
    mean = sum(level.error_rate for level in found) / 200
    assert mean == pytest.approx(rate, rel=0.05)


WIDE = Vocab(33, mask_id=32)
READER = WindowReader(
    Session(random_denoiser(WIDE, gain=0.0), HybridSchedule(WIDE, 0.2), batch_size=4)
)
TOKENS = torch.randint(32, (400,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.slow
def test_windows_are_spread_over_a_long_document():
    cut = TextWindows(TOKENS, [False] * 400, 8)
    assert len(cut) > MAX_WINDOWS
    seen = []
    found = estimated(READER, cut, max_windows=10, on_forward_passes=lambda *n: seen.append(n))
    assert found.forward_passes % 10 == 0
    assert seen[-1] == (found.forward_passes, found.forward_passes)
    assert [done for done, _ in seen[:-1]] == list(range(1, found.forward_passes + 1))
    assert all(done <= expected for done, expected in seen)
    spread = [list(cut)[int((k + 0.5) * len(cut) / 10)] for k in range(10)]
    assert estimated(READER, spread) == found


@pytest.mark.slow
def test_tokens_that_are_not_editable_do_not_count():
    """They are context; windows without editable tokens are skipped."""
    half = TextWindows(TOKENS[:80], [i < 40 for i in range(80)], 16)
    used = [window for window in half if any(window.editable)]
    assert 0 < len(used) < len(half)
    assert estimated(READER, half) == estimated(READER, used)
    with pytest.raises(DataError, match="at least one token"):
        estimated(READER, TextWindows(TOKENS[:20], [True] * 20, 16))


def test_networks_without_a_time_and_extreme_predictions():
    """A network that is certain, and wrong about some tokens, or all."""
    certain = torch.nn.functional.one_hot(torch.tensor(1), 33).double()
    session = Session(
        FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1)), READER.session.schedule
    )
    for text, low, high in (((1,) * 64, 0, 0), ((1, 1, 1, 2) * 16, 0.2, 0.3), ((2,) * 64, 0.6, 1)):
        found = estimated(WindowReader(session), [WindowTokens(text, (True,) * 64)])
        assert low <= found.error_rate <= high
        assert 0 <= found.low <= found.error_rate <= found.high <= 1
    short = estimated(WindowReader(session), [WindowTokens((1,), (True,))])
    assert short.low == 0 and short.high > 0.3


def test_it_is_printed_as_a_percentage():
    assert str(NoiseLevel(0.046, 0.039, 0.054, 0.01)) == "4.6% (3.9-5.4%)"
