"""Times for training, sampling and likelihoods."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from gidd.diffusion.times import (
    TRAINING_EPS,
    even_times,
    paper_nodes,
    sine_midpoints,
    sine_times,
    stratified_nodes,
    stratified_times,
    time_weights,
)


@given(st.integers(0, 2**62), st.integers(0, 2**31), st.integers(1, 200))
def test_every_stratum_holds_one_time(seed, step, num_samples):
    """Whatever the seed and step: one time in each of `num_samples` equal intervals."""
    t = stratified_times(seed, step, torch.arange(num_samples), num_samples, dtype=torch.float64)
    assert t.min() >= TRAINING_EPS
    assert t.max() <= 1 - TRAINING_EPS
    gaps = t.sort().values.diff()
    even = (1 - 2 * TRAINING_EPS) / num_samples
    torch.testing.assert_close(gaps, torch.full_like(gaps, even), rtol=1e-6, atol=1e-12)


def test_each_time_is_uniform_by_itself():
    """Slot 5 of 8 over many steps covers [eps, 1 - eps] evenly."""
    slot = torch.tensor([5])
    t = torch.cat([stratified_times(0, step, slot, 8) for step in range(4000)]).double()
    counts = torch.histc((t - TRAINING_EPS) / (1 - 2 * TRAINING_EPS), bins=16, min=0, max=1)
    assert ((counts - 250).abs() < 5 * 250**0.5).all()


@pytest.mark.parametrize("spacing", [even_times, sine_times])
@given(st.integers(1, 300))
def test_times_go_from_one_to_zero(spacing, num_steps):
    times = spacing(num_steps)
    assert len(times) == num_steps + 1
    assert times[0] == 1 and times[-1] == 0
    assert (times.diff() < 0).all()


@given(st.integers(2, 300))
def test_meshes_are_what_they_are_called(num_steps):
    torch.testing.assert_close(even_times(num_steps)[1], torch.tensor(1 - 1 / num_steps).double())
    theta = sine_times(num_steps).sqrt().asin()
    expected = torch.full_like(theta[1:], -math.pi / 2 / num_steps)
    torch.testing.assert_close(theta.diff(), expected, rtol=1e-5, atol=1e-9)


def test_nodes_integrate():
    """Smooth, and singular like t^(-1/2): the sine rule is right, the paper's even grid is not."""
    sine, even, eps = sine_midpoints(128), paper_nodes(128), TRAINING_EPS
    low, high = eps, 1 - eps
    assert float(sine.weight.sum()) == pytest.approx(1 - 2 * eps, abs=1e-4)
    assert float(sine.weight @ sine.t**2) == pytest.approx((high**3 - low**3) / 3, abs=1e-4)
    assert float(even.weight @ even.t**2) == pytest.approx(1 / 3, abs=5e-3)
    singular = 2 * (high**0.5 - low**0.5)
    assert float(sine.weight @ sine.t**-0.5) == pytest.approx(singular, abs=3e-4)
    assert float(even.weight @ even.t**-0.5) > singular + 0.5
    for nodes in (sine, even):
        assert eps <= nodes.t.min() and nodes.t.max() <= 1 - eps


@pytest.mark.parametrize("rule", [sine_midpoints, stratified_nodes])
@pytest.mark.parametrize("num_nodes", [1, 3, 8])
def test_randomly_shifted_nodes_are_unbiased(rule, num_nodes):
    """The mean over all shifts is the integral, for any number of nodes."""
    eps, shifts = TRAINING_EPS, (torch.arange(100_000).double() + 0.5) / 100_000
    nodes = rule(num_nodes, eps, shifts)
    for power, expected in ((0, 1 - 2 * eps), (2, ((1 - eps) ** 3 - eps**3) / 3)):
        mean = float((nodes.weight * nodes.t**power).sum(-1).mean())
        assert mean == pytest.approx(expected, abs=1e-8)


def test_folded_nodes_have_a_second_order_error():
    """Over all shifts, twice the nodes have a quarter of the error; not so without folding."""

    def worst(rule, num_nodes):
        shifts = (torch.arange(64).double() + 0.5) / 64
        nodes = rule(num_nodes, 0.0, shifts)
        return float(((nodes.weight * nodes.t).sum(-1) - 0.5).abs().max())

    for num_nodes in (8, 16, 32):
        assert worst(sine_midpoints, 2 * num_nodes) < 0.27 * worst(sine_midpoints, num_nodes)
        assert worst(stratified_nodes, 2 * num_nodes) > 0.45 * worst(stratified_nodes, num_nodes)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_weighted_times_of_any_density_average_like_uniform_ones(power):
    slot, num = torch.arange(4096), 4096
    t = stratified_times(3, 5, slot, num, dtype=torch.float64, power=power)
    weight = time_weights(t, power=power)
    length = 1 - 2 * TRAINING_EPS
    for f, mean in ((torch.ones_like, 1.0), (torch.sqrt, None), (torch.cos, None)):
        even = TRAINING_EPS + length * (torch.arange(num, dtype=torch.float64) + 0.5) / num
        expected = float(f(even).mean()) if mean is None else mean
        assert float((weight * f(t)).mean()) == pytest.approx(expected, abs=2e-3)


def test_a_power_above_one_has_more_times_near_zero():
    t = stratified_times(0, 0, torch.arange(1000), 1000, dtype=torch.float64, power=3.0)
    assert float((t < 0.125).double().mean()) == pytest.approx(0.5, abs=2e-3)
