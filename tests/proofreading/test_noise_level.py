"""The estimated fraction of wrong tokens: its error, its interval, and what it costs."""

import pytest
import torch
from scipy.stats import t as student
from support.noisy_texts import (
    HYBRID,
    LENGTH,
    SIZE,
    SOURCE,
    UNIFORM,
    as_windows,
    exact_reader,
    noisy,
)
from support.sampling_worlds import random_denoiser

from gidd.diffusion.error_rate import error_rate_at, time_at_error_rate
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import DataError
from gidd.proofreading import noise_curve
from gidd.proofreading.noise_curve import NoiseCurve
from gidd.proofreading.noise_level import MAX_WINDOWS, NoiseLevel, estimate_noise, noise_levels
from gidd.proofreading.window_reader import TextWindows, WindowReader, WindowTokens
from gidd.sampling import Engine, FunctionNetwork, run_job
from gidd.vocab import Vocab

LOWEST = float(error_rate_at(HYBRID, torch.tensor([1e-4]).double()))


def estimated(reader, windows, **options) -> NoiseLevel:
    return run_job(lambda jobs: estimate_noise(jobs, reader, windows, **options))


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
        assert len(found.windows) == 400
        typical = torch.tensor([window.error_rate for window in found.windows]).quantile(0.5)
        assert float(typical) == pytest.approx(rate, rel=0.3)


@pytest.mark.parametrize("rate", [0.0, 0.001])
def test_clean_text_is_estimated_as_clean(rate):
    """Also between 0 and the noise at the smallest time of the network."""
    x = SOURCE.sample(2, torch.arange(64), LENGTH)
    found = estimated(exact_reader(HYBRID, 64), as_windows(noisy(x, rate, seed=4)))
    assert rate < LOWEST / 4
    assert found.low <= rate <= found.high < rate + 0.004
    assert found.error_rate == pytest.approx(rate, abs=0.0006)
    assert found.time == 1e-4
    assert found.calls == 3 * 64
    assert (found.low == 0) == (rate == 0)


def curve_of(z) -> NoiseCurve:
    """The predictions on the tokens of all windows, at all levels."""
    levels = noise_levels(exact_reader(HYBRID, len(z)))
    found = [
        SOURCE.leave_one_out(HYBRID, t.expand(len(z)), z).gather(-1, z[..., None]).flatten()
        for t in time_at_error_rate(HYBRID, levels)
    ]
    noise = torch.full((len(levels), z.numel()), 1 / SIZE, dtype=torch.float64)
    return NoiseCurve(levels, torch.stack(found), noise, SIZE / (SIZE - 1))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
def test_the_interval_covers_the_truth_as_often_as_it_says(rate):
    """200 documents of 8 windows of 64 tokens."""
    curve = curve_of(noisy(SOURCE.sample(5, torch.arange(1600), LENGTH), rate, seed=3))
    documents = [document.fit() for document in curve.split([8 * LENGTH] * 200)]
    assert 0.9 <= sum(found.low <= rate <= found.high for found in documents) / 200 <= 0.98
    mean = sum(found.error_rate for found in documents) / 200
    assert mean == pytest.approx(rate, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
def test_the_interval_of_complete_estimates(rate):
    reader = exact_reader(HYBRID, 24)
    z = noisy(SOURCE.sample(5, torch.arange(1600), LENGTH), rate, seed=1)
    found = [estimated(reader, as_windows(part)) for part in z.split(8)]
    assert 0.9 <= sum(level.low <= rate <= level.high for level in found) / 200 <= 0.98
    windows = [window for level in found for window in level.windows]
    assert sum(window.low <= rate <= window.high for window in windows) / 1600 >= 0.93


def test_levels_between_those_of_the_network_are_interpolated():
    """The mean log-likelihood in between, to 0.005 nats; below the smallest level, by hand."""
    z = noisy(SOURCE.sample(3, torch.arange(64), LENGTH), 0.05)
    curve = curve_of(z)
    rates = torch.cat([curve.shares.sqrt()[:-1] * curve.shares.sqrt()[1:], curve.shares])
    own = z[..., None]
    for rate, values in zip(rates, curve(rates), strict=True):
        t = time_at_error_rate(HYBRID, rate).expand(64)
        x_theta = SOURCE.leave_one_out(HYBRID, t, z).gather(-1, own).flatten()
        rho = rate * SIZE / (SIZE - 1)
        expected = ((1 - rho) * x_theta + rho / SIZE).log()
        error = float((values - expected).mean())
        assert abs(error) < (1e-12 if rate in curve.shares else 5e-3)
    rho = LOWEST / 3 * SIZE / (SIZE - 1)
    (values,) = curve(torch.tensor([LOWEST / 3], dtype=torch.float64))
    by_hand = ((1 - rho) * curve.found[0] + rho / SIZE).log()
    torch.testing.assert_close(values, by_hand, rtol=1e-12, atol=1e-12)
    assert curve(torch.tensor([0.0, 1.0]).double()).isfinite().all()


def test_wrong_tokens_of_a_channel():
    """Each token is mistaken for the next one only: uniform noise would be estimated lower."""
    channel = torch.zeros(SIZE + 1, SIZE + 1).double()
    channel[range(SIZE), [(v + 1) % SIZE for v in range(SIZE)]] = 1
    x = SOURCE.sample(1, torch.arange(64), LENGTH)
    generator = torch.Generator().manual_seed(0)
    z = torch.where(torch.rand(x.shape, generator=generator) < 0.08, (x + 1) % SIZE, x)
    reader = exact_reader(HYBRID, 64)
    by_channel = estimated(reader, as_windows(z), channel=channel)
    by_noise = estimated(reader, as_windows(z))
    assert by_channel.error_rate == pytest.approx(0.08, rel=0.15)
    assert by_channel.low < 0.08 < by_channel.high
    assert by_channel.high - by_channel.low < by_noise.high - by_noise.low


WIDE = Vocab(33, mask_id=32)
READER = WindowReader(
    Engine(random_denoiser(WIDE, gain=0.0), HybridSchedule(WIDE, 0.2), rows_per_call=4)
)
TOKENS = torch.randint(32, (400,), generator=torch.Generator().manual_seed(0)).tolist()


def test_windows_are_spread_over_a_long_document():
    cut = TextWindows(TOKENS, [False] * 400, 8)
    seen = []
    found = estimated(READER, cut, max_windows=10, on_calls=lambda *n: seen.append(n))
    assert len(cut) > MAX_WINDOWS
    places = [window.window for window in found.windows]
    assert len(places) == 10 and places == sorted(set(places))
    gaps = torch.tensor(places).diff()
    assert int(gaps.max()) - int(gaps.min()) <= 1
    assert seen[-1] == (found.calls, found.calls)
    assert [done for done, _ in seen[:-1]] == list(range(1, found.calls + 1))
    assert all(done <= expected for done, expected in seen)


def test_tokens_that_are_not_judged_do_not_count():
    """They are context, and are counted in no window; windows without judged tokens are skipped."""
    free = TextWindows(TOKENS[:80], [False] * 80, 16)
    fixed = TextWindows(TOKENS[:80], [i < 40 for i in range(80)], 16)
    judged = sum(any(window.judged) for window in fixed)
    assert sum(sum(window.judged) for window in fixed) == 40
    assert 0 < judged < len(free)
    found = estimated(READER, fixed)
    assert len(found.windows) == judged
    with pytest.raises(DataError, match="at least one token"):
        estimated(READER, TextWindows(TOKENS[:20], [True] * 20, 16))


def test_a_window_is_estimated_alike_in_any_company():
    """Alone, and twice in a document: bit for bit, except for the levels that others ask for."""
    cut = list(TextWindows(TOKENS[:32], [False] * 32, 32))
    (alone,) = estimated(READER, cut).windows
    first, second = estimated(READER, cut * 2).windows
    assert first[1:] == second[1:]
    assert alone.error_rate == pytest.approx(first.error_rate, rel=0.05)


def test_networks_without_a_time_and_extreme_predictions():
    """A network that is certain, and wrong about some tokens, or all."""
    certain = torch.nn.functional.one_hot(torch.tensor(1), 33).double()
    engine = Engine(
        FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1)), READER.engine.schedule
    )
    for text, low, high in (((1,) * 64, 0, 0), ((1, 1, 1, 2) * 16, 0.2, 0.3), ((2,) * 64, 0.6, 1)):
        found = estimated(WindowReader(engine), [WindowTokens(text, (True,) * 64)])
        assert low <= found.error_rate <= high
        assert 0 <= found.low <= found.error_rate <= found.high <= 1
    (short,) = estimated(WindowReader(engine), [WindowTokens((1,), (True,))]).windows
    assert short.low == 0 and short.high > 0.3


def test_it_is_printed_as_a_percentage():
    assert str(NoiseLevel(0.046, 0.039, 0.054, 0.01)) == "4.6% (3.9-5.4%)"


@pytest.mark.parametrize("degrees", [3, 7, 15, 1000])
def test_the_quantile_of_students_distribution(degrees):
    expected = student.ppf(0.975, degrees)
    assert noise_curve._t_quantile(degrees) == pytest.approx(
        expected, rel=0.01 if degrees > 3 else 0.04
    )
