"""Distances, alignments and error rates: by hand, and against the textbook's table."""

import math
import random

import pytest
from gidd.evaluation.correction.edit_distance import align, levenshtein
from gidd.evaluation.correction.error_rates import (
    RATES,
    CorrectionCounts,
    correction_rates,
)
from gidd.evaluation.correction.noises import NoisyText


def textbook(first, second):
    above = list(range(len(second) + 1))
    for i, x in enumerate(first, 1):
        row = [i]
        for j, y in enumerate(second, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
        above = row
    return above[-1]


def test_distances_by_hand():
    assert levenshtein("kitten", "sitting") == 3
    assert levenshtein("", "abc") == levenshtein("abc", "") == 3
    assert levenshtein("same", "same") == levenshtein("", "") == 0
    assert levenshtein(["a", "b"], ["b", "a"]) == 2


def test_distances_and_alignments_of_random_sequences():
    numbers = random.Random(0)
    for _ in range(2000):
        size = numbers.choice((2, 3, 6))
        a, b = ([numbers.randrange(size) for _ in range(numbers.randrange(12))] for _ in "ab")
        distance = textbook(a, b)
        assert levenshtein(a, b) == distance
        places = align(a, b)
        kept = [place for place in places if place is not None]
        assert len(places) == len(a) and kept == sorted(set(kept))
        assert all(0 <= place < len(b) for place in kept)
        replaced = sum(place is not None and a[i] != b[place] for i, place in enumerate(places))
        assert replaced + (len(a) - len(kept)) + (len(b) - len(kept)) == distance


def test_a_long_sequence_is_aligned_exactly():
    numbers = random.Random(1)
    a = [numbers.randrange(300) for _ in range(3000)]
    # 300 is no item of the sequence: every change is seen
    b = [300 if i % 7 == 0 else item for i, item in enumerate(a) if i % 50 != 1]
    assert levenshtein(a, b) == len(range(0, 3000, 7)) + 60 - len(
        [i for i in range(0, 3000, 7) if i % 50 == 1]
    )
    places = align(a, b)
    assert [i for i, place in enumerate(places) if place is None][:2] == [1, 51]
    assert places[2] == 1 and places[-1] == len(b) - 1


CLEAN, WRONG = "the cat sat on the mat", "the cxt sat onn the mat"
NOISY = NoisyText(CLEAN, WRONG, tuple(CLEAN.split()), tuple(WRONG.split()))


def test_counts_by_hand():
    # cat restored, on not, sat spoiled
    counts = CorrectionCounts.of(NOISY, "the cat sit onn the mat")
    assert counts == CorrectionCounts(
        words=6,
        right=4,
        spoiled=1,
        touched=2,
        word_errors_before=2,
        word_errors=2,
        characters=22,
        character_errors_before=2,
        character_errors=2,
    )


@pytest.mark.parametrize(
    ("corrected", "spoiled", "touched", "word_errors"),
    [
        (NOISY.text, 0, 0, 2),
        (CLEAN, 0, 2, 0),
        ("the cxt sat o nn the mat", 0, 1, 3),  # one wrong word became two
        ("the cxt saton the mat", 1, 2, 3),  # a right one lost
        ("", 4, 6, 6),
        ("the cat sat on the mat mat", 0, 2, 1),
        ("the  cat\nsat on the mat ", 0, 2, 0),  # white space is not counted in words
    ],
)
def test_words_that_are_split_joined_or_lost(corrected, spoiled, touched, word_errors):
    counts = CorrectionCounts.of(NOISY, corrected)
    found = (counts.spoiled, counts.touched, counts.word_errors)
    assert found == (spoiled, touched, word_errors)
    assert (counts.right, counts.word_errors_before, counts.character_errors_before) == (4, 2, 2)


def counts(words, before, after, spoiled=0):
    return CorrectionCounts(
        words=words,
        right=words - before,
        spoiled=spoiled,
        touched=before,
        word_errors_before=before,
        word_errors=after,
        characters=5 * words,
        character_errors_before=before,
        character_errors=after,
    )


def test_rates_are_ratios_of_sums_over_groups():
    several = [counts(100, 20, 5, 2), counts(300, 30, 15, 1), counts(100, 0, 0)]
    rates = correction_rates(several)
    assert rates.keys() == RATES.keys()
    values = {name: rate.value for name, rate in rates.items()}
    assert values == pytest.approx(
        {
            "wer_before": 50 / 500,
            "wer": 20 / 500,
            "cer_before": 50 / 2500,
            "cer": 20 / 2500,
            "spoiled": 3 / 450,
            "touched": 50 / 500,
            "cut": 0.6,
        }
    )
    assert all(rate.low <= rate.value <= rate.high for rate in rates.values())
    grouped = correction_rates(several, groups=[7, 7, 1])
    assert {name: rate.value for name, rate in grouped.items()} == pytest.approx(values)
    assert grouped["cut"].low == grouped["cut"].high == pytest.approx(0.6)  # of one group only
    assert grouped["wer"].standard_error > 0


def test_bootstrap_intervals_of_two_kinds_of_documents():
    # documents of equal size with error rates 0 and 0.2: the mean of n of them is binomial
    rates = correction_rates([counts(100, 20, 20 * (i % 2)) for i in range(100)])
    assert rates["wer"].value == pytest.approx(0.1)
    deviation = 0.2 * 0.5 / 100**0.5
    assert rates["wer"].standard_error == pytest.approx(deviation, rel=0.1)
    assert rates["wer"].low == pytest.approx(0.1 - 1.96 * deviation, abs=0.003)
    assert rates["cut"].high == pytest.approx(0.5 + 1.96 * deviation / 0.2, abs=0.015)
    assert rates == correction_rates([counts(100, 20, 20 * (i % 2)) for i in range(100)])


def test_rates_without_a_denominator_or_an_interval():
    rates = correction_rates([counts(100, 0, 1)])
    assert math.isnan(rates["cut"].value) and rates["cut"].low is None
    assert rates["wer"] == (0.01, None, None, None)
