"""Metrics of tokens against values computed by hand."""

import json
import math
from pathlib import Path

import pytest

from gidd.evaluation.samples import (
    distinct_ngrams,
    mean_of_defined,
    repetition,
    sequence_entropy,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "misc.json").read_text())


@pytest.mark.parametrize("example", GOLDEN["unigram_entropy"], ids=lambda e: len(e["tokens"]))
def test_unigram_entropy_of_the_golden_examples(example):
    assert sequence_entropy(example["tokens"]) == pytest.approx(example["entropy_nats"], abs=1e-12)


def test_unigram_entropy_has_the_bound_of_the_paper():
    """App. F: log 512 = 6.24 for 512 different tokens; the order of tokens does not matter."""
    assert sequence_entropy(range(512)) == pytest.approx(6.238, abs=1e-3)
    assert sequence_entropy([1, 2, 2]) == sequence_entropy([2, 1, 2])


def test_single_tokens_have_no_entropy_and_empty_samples_no_value():
    assert sequence_entropy([3]) == 0
    assert math.isnan(sequence_entropy([]))
    assert math.isnan(repetition([1, 2], 3))
    assert math.isnan(distinct_ngrams([[], [1]], 2))
    assert math.isnan(distinct_ngrams([], 1))


def test_distinct_ngrams_count_over_the_set():
    # bigrams 12 21 12 and 12 22: five, of which 12, 21 and 22 differ
    assert distinct_ngrams([[1, 2, 1, 2], [1, 2, 2]], 2) == 3 / 5
    assert distinct_ngrams([[1, 2, 1, 2], [1, 2, 2]], 1) == 2 / 7
    assert distinct_ngrams([[1, 2], [3]], 2) == 1  # n-grams do not go across samples


def test_repetition_is_the_fraction_of_ngrams_seen_before():
    assert repetition([1, 2, 3, 1, 2, 3], 2) == pytest.approx(2 / 5)
    assert repetition([7] * 10, 4) == pytest.approx(6 / 7)
    assert repetition([1, 2, 3, 4, 5], 4) == 0


def test_undefined_values_are_left_out_of_a_mean():
    mean = mean_of_defined([1.0, None, math.nan, 3.0])
    assert (mean.value, mean.num_samples) == (2, 2)
    assert mean.standard_error == pytest.approx(1.0)  # stdev sqrt(2) / sqrt(2)
    assert mean_of_defined([None]).num_samples == 0
