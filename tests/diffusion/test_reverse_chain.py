"""The distribution of complete reverse chains, computed without sampling (V = 3, L = 3)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.cases import few
from support.strategies import SCHEDULE_TYPES, schedule_from_unit_cube, unit

from gidd.diffusion.schedules import (
    Cosine,
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.diffusion.times import even_times, sine_times
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld, total_variation
from gidd.vocab import Vocab

VOCAB = Vocab(4, mask_id=3)
STEPS = [8, 16, 32, 64, 128]
LONG = [*STEPS, 256, 512]


def world_of(schedule) -> SmallWorld:
    return SmallWorld(MarkovSource.random(3, 0.3, rng=1), schedule, length=3)


def errors(world: SmallWorld, spacing, steps: list[int]) -> list[float]:
    results = (world.reverse_distribution(world.leave_one_out, spacing(T)) for T in steps)
    return [total_variation(result, world.data_distribution) for result in results]


def order(values: list[float], steps: list[int]) -> float:
    """Mean slope of log error against log steps."""
    return math.log2(values[0] / values[-1]) / math.log2(steps[-1] / steps[0])


# schedule, spacing, the order that must be seen: an interval
CONVERGENCE = {
    "masked, even": (MaskedSchedule(VOCAB), even_times, (0.8, 1.2)),
    "masked, sine": (MaskedSchedule(VOCAB), sine_times, (0.8, 1.2)),
    "masked cosine, even": (MaskedSchedule(VOCAB, Cosine()), even_times, (0.8, 1.2)),
    "uniform, even": (UniformSchedule(Vocab(3)), even_times, (0.8, 1.2)),
    "uniform, sine": (UniformSchedule(Vocab(3)), sine_times, (0.8, 1.2)),
    "hybrid 0.1, even": (HybridSchedule(VOCAB, 0.1), even_times, (0.7, 1.2)),
    "hybrid 0.1, sine": (HybridSchedule(VOCAB, 0.1), sine_times, (0.8, 1.2)),
    # more uniform noise, slower on the even times: the first step carries sqrt(1/T) of it
    "hybrid 0.2, even": (HybridSchedule(VOCAB, 0.2), even_times, (0.65, 1.2)),
    "hybrid 0.2, sine": (HybridSchedule(VOCAB, 0.2), sine_times, (0.8, 1.2)),
    "mixture, sine": (
        schedule_from_unit_cube(MixtureSchedule, VOCAB, (0.2, 0.5, 0.5)),
        sine_times,
        (0.8, 1.2),
    ),
}


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(LONG, marks=pytest.mark.long)], ids=lambda s: f"{s[-1]} steps"
)
@pytest.mark.parametrize("case", CONVERGENCE)
def test_the_chain_converges_to_the_data(case, steps):
    schedule, spacing, (lowest, highest) = CONVERGENCE[case]
    values = errors(world_of(schedule), spacing, steps)
    assert all(later < sooner for sooner, later in zip(values, values[1:], strict=False)), values
    assert lowest <= order(values, steps) <= highest, (order(values, steps), values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "spacing", "num_steps"),
    few(
        [MaskedSchedule(VOCAB), HybridSchedule(VOCAB, 0.1), HybridSchedule(VOCAB, 0.2)],
        [even_times, sine_times],
        [8, 32, 128],
        every=5,
    ),
)
def test_ending_at_zero_beats_ending_at_eps(schedule, spacing, num_steps):
    world = world_of(schedule)
    to_zero = spacing(num_steps)
    to_eps = torch.cat([to_zero[:-1], torch.tensor([1e-4], dtype=torch.float64)])
    at_zero = total_variation(
        world.reverse_distribution(world.leave_one_out, to_zero), world.data_distribution
    )
    at_eps = total_variation(
        world.reverse_distribution(world.leave_one_out, to_eps), world.data_distribution
    )
    assert at_zero < at_eps


@pytest.mark.parametrize(
    ("p_uniform", "expected"),
    [(0.1, (0.0355, 0.0108)), (0.2, (0.0547, 0.0206)), (0.5, (0.1259, 0.0707))],
)
def test_ancestral_errors_of_record(p_uniform, expected):
    """Total variation after 8 and 32 steps of the even times."""
    world = world_of(HybridSchedule(VOCAB, p_uniform))
    for num_steps, error in zip((8, 32), expected, strict=True):
        distribution = world.reverse_distribution(world.leave_one_out, even_times(num_steps))
        assert total_variation(distribution, world.data_distribution) == pytest.approx(
            error, abs=6e-5
        )


@pytest.mark.slow
def test_chain_with_the_ordinary_posterior_does_not_converge():
    """The reverse kernel is right with the leave-one-out denoiser only."""
    world = world_of(HybridSchedule(VOCAB, 0.2))
    distribution = world.reverse_distribution(world.posterior, sine_times(256))
    assert total_variation(distribution, world.data_distribution) > 0.05


@pytest.mark.parametrize("schedule_type", SCHEDULE_TYPES)
@given(st.tuples(unit, unit, unit), st.floats(0, 1), st.integers(0, 2), st.integers(0, 9))
def test_a_gibbs_redraw_leaves_the_distribution_unchanged(
    schedule_type, cube, time, position, seed
):
    """q_t(z_i | Z without z_i) = alpha x_theta + beta pi, to 1e-12, at every time."""
    source = MarkovSource.random(3, 0.5, np.random.default_rng(seed))
    world = SmallWorld(source, schedule_from_unit_cube(schedule_type, VOCAB, cube), length=3)
    distribution = world.noisy_distribution(time)
    redrawn = distribution @ world.gibbs_kernel(world.leave_one_out, time, position)
    torch.testing.assert_close(redrawn, distribution, rtol=0, atol=1e-12)
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-12)
