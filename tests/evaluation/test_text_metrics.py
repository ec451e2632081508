"""Metrics of tokens against values computed by hand."""

import json
import math
from pathlib import Path

import pytest

import gidd
from gidd.errors import ConfigError
from gidd.evaluation.metrics import distinct_ngrams, repetition, sequence_entropy
from gidd.evaluation.sample_files import TextSample
from gidd.evaluation.samples import evaluate_samples, mean_of_defined

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


def test_metrics_by_name_are_reported_with_their_errors():
    samples = [
        TextSample("abab", (0, 1, 0, 1)),
        TextSample("abcd", (0, 1, 2, 3)),
        TextSample("", ()),
    ]
    pairs = evaluate_samples(samples, metric="repetition")
    assert pairs.measurements["repetition"].value == pytest.approx((1 / 3 + 0) / 2)
    assert pairs.measurements["repetition"].num_samples == 2
    assert [row["repetition"] for row in pairs.rows[:2]] == pytest.approx([1 / 3, 0])
    assert pairs.manifest["metric"] == {"kind": "repetition", "n": 2}
    single = gidd.component("metric", "repetition", n=1)
    assert evaluate_samples(samples, metric=single).measurements["repetition"].value == 0.25
    (problem,) = gidd.component("metric", "repetition", n=0).problems()
    assert problem.startswith("n must be an integer of at least 1")


def test_compression_is_small_for_repeated_texts():
    samples = [TextSample(text, (0,)) for text in ("ab" * 500, "the of and to in a")]
    result = evaluate_samples(samples, metric="compression")
    repeated, varied = (row["compression"] for row in result.rows)
    assert repeated < 0.05 < 1 < varied  # a short text and a header
    with pytest.raises(ConfigError, match="metric must be one of compression, repetition"):
        evaluate_samples(samples, metric="beauty")
