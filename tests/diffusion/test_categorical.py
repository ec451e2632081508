"""Draws with exact probabilities for rare tokens, and cut-offs."""

import pytest
import torch
from hypothesis import given, strategies as st

from gidd.diffusion.categorical import at, at_token, cut_below, cut_below_max, draw, happens
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers

ONE = 1 << UNIT_BITS


def measures(p: torch.Tensor) -> list[int]:
    """How many of the 2**62 fixed-point uniforms draw each token of `p`, found by bisection."""
    first = []  # first uniform that draws token v or a later one
    for v in range(len(p) + 1):
        low, high = 0, ONE
        while low < high:
            middle = (low + high) // 2
            u = torch.tensor([[middle]], device=p.device)
            low, high = (middle + 1, high) if int(draw(p[None], u)) < v else (low, middle)
        first.append(low)
    return [after - before for before, after in zip(first, first[1:], strict=False)]


def test_rare_tokens_have_their_probability(device):
    """float32 inputs down to 1e-9, before and after large ones: each has its probability."""
    p = torch.tensor([1e-9, 0.3, 1e-9, 0.0, 0.6, 3e-8, 1e-9, 0.1, 1e-9], device=device)
    total = sum(p.tolist())
    for probability, measure in zip(p.tolist(), measures(p), strict=True):
        assert measure / ONE == pytest.approx(probability / total, rel=1e-6, abs=0)


@pytest.mark.slow
def test_rare_tokens_are_drawn_as_often_as_they_should_be(device):
    """50,000 tokens of 1e-9 behind one of almost 1: they are drawn 5e-5 of the time."""
    p = torch.full((50_001,), 1e-9, device=device)
    p[0] = 1 - 5e-5
    num = 1 << 22
    sample, position = torch.tensor([0], device=device), torch.arange(num, device=device)
    z = draw(p[None], random_integers(5, Stream.NOISE, 0, sample, position)).cpu()
    expected = num * 5e-5
    assert abs(int((z > 0).sum()) - expected) < 5 * expected**0.5
    rare = z[z > 0]
    assert rare.min() >= 1
    assert rare.max() <= 50_000
    assert (rare > 25_000).double().mean() == pytest.approx(0.5, abs=5 * 0.5 / len(rare) ** 0.5)


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8).filter(lambda p: sum(p) > 1e-6),
    st.integers(0, ONE - 1),
)
def test_draws_are_inverse_cdf(weights, u):
    """Exact rational arithmetic agrees; a token of probability zero is never drawn."""
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    token = int(draw(p[None], torch.tensor([[u]])))
    assert p[token] > 0
    below, upto = float(p[:token].sum()), float(p[: token + 1].sum())
    assert below - 1e-12 <= u / ONE <= upto + 1e-12


def test_draws_need_no_normalisation():
    p = torch.tensor([0.1, 0.4, 0.25], dtype=torch.float64)
    u = random_integers(0, Stream.NOISE, 0, torch.arange(1), torch.arange(10_000))
    assert torch.equal(draw(p[None], u), draw(p[None] / 0.75, u))


def test_the_extreme_uniforms_stay_inside():
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    assert draw(p, torch.tensor([[0, ONE - 1]])).tolist() == [[1, 3]]


@pytest.mark.parametrize("size", [2, 3, 300, 301])
def test_rows_of_nan_draw_a_valid_token(size, device):
    """An index out of range would end a GPU's context before the engine can report the NaN."""
    u = random_integers(0, Stream.NOISE, 0, torch.arange(1), torch.arange(100)).to(device)
    token = draw(torch.full((1, size), torch.nan, device=device), u)
    assert 0 <= token.min() <= token.max() < size


def test_reading_probabilities():
    p = torch.arange(12.0).view(1, 3, 4)
    z = torch.tensor([[2, 0, 3]])
    assert at(p, z).tolist() == [[2, 4, 11]]
    assert at_token(p[:, 1], z).tolist() == [[6, 4, 7]]


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(0, 0.99))
def test_cut_offs(weights, level):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    for cut, threshold in (
        (cut_below(p, level), min(level, float(p.max()))),
        (cut_below_max(p, level), level * float(p.max())),
    ):
        kept = p >= threshold
        assert torch.equal(cut > 0, kept)
        assert kept[p.argmax()]
        assert float(cut.sum()) == pytest.approx(1)
        torch.testing.assert_close(cut[kept], p[kept] / p[kept].sum())


def test_the_two_cut_offs_differ():
    p = torch.tensor([0.02, 0.01, 0.005] + [0.965 / 965] * 965)
    assert (cut_below(p, 0.008) > 0).sum() == 2
    assert (cut_below_max(p, 0.04) > 0).sum() == 968  # 0.04 x 0.02 = 0.0008 < 0.001


@given(st.floats(0, 1, width=32), st.integers(0, ONE - 1))
def test_an_event_happens_with_its_probability(p, u):
    """Below p * 2**62 it happens, above it does not; 0 never, 1 always; 1e-9 is not lost."""
    happened = bool(happens(torch.tensor(p), torch.tensor(u)))
    assert happened == (u // 4 < int(p * 2**60))
    assert not happens(torch.tensor(0.0), torch.tensor(u))
    assert happens(torch.tensor(1.0), torch.tensor(u))
    assert bool(happens(torch.tensor(1e-9), torch.tensor(int(0.99e-9 * ONE))))


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, ONE - 1))
def test_a_more_likely_event_happens_whenever_a_less_likely_one_does(p, other, u):
    low, high = sorted((p, other))
    p_low, p_high = torch.tensor([low, high], dtype=torch.float64)
    if happens(p_low, torch.tensor(u)):
        assert happens(p_high, torch.tensor(u))
