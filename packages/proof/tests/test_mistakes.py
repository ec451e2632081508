"""The number of mistakes per character, from scored places."""

import math

import pytest
from gidd_proof.mistakes import (
    SMALLEST_RATE,
    CountedChunk,
    Mistakes,
    ScoredPlace,
    estimate_mistakes,
    fit_mistakes,
)

FIRST = Mistakes(0.01, (1.0,))


def place(log_odds, num_edits=1):
    """A place with one candidate of these log odds at a rate of 0.01."""
    return ScoredPlace(0, ("teh", "the"), (0.0, log_odds), ((0,), (num_edits,)))


def mistake_rate(places, num_characters, rate):
    return fit_mistakes(places, Mistakes(rate, (1.0,)), num_characters).rate


def test_probabilities_are_a_softmax():
    found = place(math.log(3))
    assert found.probabilities() == pytest.approx([0.25, 0.75])
    assert found.probabilities([math.log(2)]) == pytest.approx([1 / 7, 6 / 7])
    assert [a.text for a in found.alternatives()] == ["teh", "the"]


def test_certain_mistakes_are_counted():
    assert mistake_rate([place(50.0)] * 3 + [place(50.0, 2)], 500, 0.01) == pytest.approx(0.01)
    assert mistake_rate([place(-50.0)] * 3, 500, 0.01) == SMALLEST_RATE
    assert mistake_rate([], 500, 0.01) == SMALLEST_RATE


def test_the_rate_is_a_fixed_point():
    """At the rate that is returned, expected mistakes per character are the rate."""
    places = [place(w) for w in (6.0, 3.0, 0.0, -1.0, 8.0)]
    rate = mistake_rate(places, 300, 0.01)
    expected = sum(p.probabilities([math.log(rate / 0.01)])[1] for p in places) / 300
    assert rate == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("start", [0.001, 0.01, 0.1])
def test_the_rate_does_not_depend_on_the_first_one(start):
    """Weights are relative to the rate they were computed with."""
    shift = math.log(start / 0.01)
    places = [
        ScoredPlace(0, ("a", "b"), (0.0, w + shift), ((0,), (1,))) for w in (6.0, 3.0, 8.0, 9.0)
    ]
    assert mistake_rate(places, 200, start) == pytest.approx(0.0198, rel=0.02)


def test_the_error_is_that_of_the_jackknife():
    """With certain mistakes the rate is a mean, and the jackknife gives its standard error."""
    counts = [0, 2, 4, 2]
    chunks = [CountedChunk((place(60.0),) * n, 100) for n in counts]
    rate, error = estimate_mistakes(chunks, FIRST)
    assert rate == pytest.approx(0.02)
    variance = sum((n / 100 - 0.02) ** 2 for n in counts) / 3
    assert error == pytest.approx(math.sqrt(variance / 4), rel=1e-3)
    assert estimate_mistakes(chunks[1:2], FIRST) == pytest.approx((0.02, math.sqrt(0.02 / 100)))


def test_the_kinds_of_mistakes_are_learnt_from_the_text():
    """Ten certain replacements decide a place where a dropped letter is as likely at first."""
    first = Mistakes(0.02, (0.5, 0.5))
    certain = [ScoredPlace(0, ("a", "b"), (0.0, 50.0), ((0, 0), (1, 0)))] * 10
    open_place = ScoredPlace(0, ("x", "y", "z"), (0.0, 5.0, 5.0), ((0, 0), (1, 0), (0, 1)))
    found = fit_mistakes([*certain, open_place], first)
    assert found.rate == 0.02
    assert found.kinds[0] == pytest.approx((10.9 + 2.5) / 16, abs=0.02)
    assert sum(found.kinds) == pytest.approx(1)
    _, replaced, dropped = open_place.probabilities(found.shifts_from(first))
    assert replaced / dropped == pytest.approx(found.kinds[0] / found.kinds[1])
