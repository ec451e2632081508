"""Tests of differences: values computed by hand, and their error rates."""

import math

import numpy as np
import pytest

from gidd.evaluation.compare import (
    holm_p_values,
    mean_difference,
    unpaired_difference,
)
from gidd.evaluation.results import Measurement

stats = pytest.importorskip("scipy.stats", reason="comes with gidd[eval]")


def paired_difference(before, after):
    return mean_difference([b - a for a, b in zip(before, after, strict=True)])


def test_paired_difference_by_hand():
    # differences 1, 2, 3: mean 2, standard deviation 1, error 1 / sqrt(3), t = 2 sqrt(3) = 3.4641
    found = paired_difference([1, 1, 1], [2, 3, 4])
    assert found.value == 2
    assert found.standard_error == pytest.approx(1 / math.sqrt(3))
    # with two degrees of freedom P(|T| >= t) = 1 - t / sqrt(2 + t**2)
    assert found.p_value == pytest.approx(1 - math.sqrt(12 / 14))
    assert (found.is_paired, found.num_pairs) == (True, 3)


def test_paired_and_welch_are_those_of_scipy():
    random = np.random.default_rng(1)
    first, second = random.normal(0, 1, 20), random.normal(0.5, 3, 33)
    paired = paired_difference(list(first), list(second[:20]))
    assert paired.p_value == pytest.approx(stats.ttest_rel(second[:20], first).pvalue)
    means = Measurement.mean(list(first)), Measurement.mean(list(second))
    welch = unpaired_difference(*means)
    assert welch.p_value == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert not welch.is_paired


def test_equal_samples_do_not_differ_and_equal_changes_do():
    assert paired_difference([3, 4, 5], [3, 4, 5]).p_value == 1
    assert paired_difference([3, 4, 5], [4, 5, 6]).p_value == 0
    assert unpaired_difference(Measurement(2, 0, 9), Measurement(2, 0, 9)).p_value == 1
    assert unpaired_difference(Measurement(2, 0, 9), Measurement(3, 0, 9)).p_value == 0


def test_no_standard_error_means_no_test():
    for other in (Measurement(2.0), Measurement(math.nan, 0.1, 5)):
        found = unpaired_difference(Measurement(1.0, 0.1, 10), other)
        assert (found.standard_error, found.p_value) == (None, None)
    assert mean_difference([1.5]).p_value is None
    assert mean_difference([]).p_value is None


def test_measurements_without_a_number_of_samples_use_the_normal_distribution():
    found = unpaired_difference(Measurement(0, 3), Measurement(10, 4))
    assert (found.value, found.standard_error) == (10, 5)
    assert found.p_value == pytest.approx(0.0455, abs=1e-4)


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.04 times 3, 2, 1: 0.03, 0.04, 0.04
    assert holm_p_values([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm_p_values([0.5, 0.9]) == [1, 1]
    assert holm_p_values([0.03]) == [0.03]
    assert holm_p_values([]) == []


def test_five_percent_of_equal_populations_differ():
    """The error rate that a p-value promises; 4 standard errors of 1,000 trials are 2.8%."""
    random = np.random.default_rng(2)
    draws = random.normal(size=(1000, 2, 8))
    paired = [paired_difference(list(a), list(b)).p_value for a, b in draws]
    means = [tuple(Measurement.mean(list(part)) for part in pair) for pair in draws]
    welch = [unpaired_difference(*pair).p_value for pair in means]
    for p_values in (paired, welch):
        assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.028)
