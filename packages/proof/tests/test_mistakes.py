"""Probabilities of places, and the mistakes per word of a text."""

import math

import pytest
from gidd_proof.mistakes import CALIBRATED_RATE, OTHER_TEXT, ScoredPlace, estimate_rate


def place(log_odds):
    """A place with one candidate of these log odds."""
    return ScoredPlace(0, ("teh", "the"), (0.0, log_odds))


def test_probabilities_are_a_softmax():
    found = place(math.log(3))
    assert found.probabilities() == pytest.approx([0.25, 0.75])
    assert found.probabilities(2 * CALIBRATED_RATE) == pytest.approx([1 / 7, 6 / 7])
    assert [a.text for a in found.alternatives(CALIBRATED_RATE)] == ["teh", "the"]


def test_mistakes_raise_the_rate_and_long_clean_texts_lower_it():
    assert estimate_rate([], 0) == pytest.approx(CALIBRATED_RATE)
    assert estimate_rate([], 10_000) == pytest.approx(0.005)  # the lower bound
    assert estimate_rate([place(50.0)] * 20, 100) > 2 * CALIBRATED_RATE
    few, many = (estimate_rate([place(1.0)] * n, 300) for n in (5, 30))
    assert few < CALIBRATED_RATE < many


def test_the_rate_is_a_fixed_point():
    """At the rate that is returned, expected mistakes per word are the rate, with the prior."""
    places = [place(w) for w in (6.0, 3.0, 0.0, -1.0, 8.0)]
    rate = estimate_rate(places, 300)
    expected = sum(1 - p.probabilities(rate)[0] for p in places)
    assert rate == pytest.approx((expected + 60 * CALIBRATED_RATE) / 360, rel=1e-3)


def test_typos_do_not_make_confused_words_more_likely():
    typo, slip = place(1.0), place(1.0)._replace(is_slip=True)
    assert typo.probabilities(0.2)[1] > typo.probabilities()[1]
    assert slip.probabilities(0.2) == slip.probabilities() == typo.probabilities()
    assert slip.probabilities(0.01) == typo.probabilities(0.01)


def test_the_right_text_may_be_another():
    assert sum(a.probability for a in place(3.0).alternatives(0.05)) == pytest.approx(1)
    assert place(50.0).alternatives(0.05)[1].probability == pytest.approx(1 - OTHER_TEXT)
    slip = place(50.0)._replace(is_slip=True)
    assert slip.alternatives(0.05)[1].probability == pytest.approx(1)
