"""Invalid settings are rejected with a message that names the field, the value and the fix."""

import re

import pytest
import torch
from hypothesis import given, strategies as st
from support.strategies import SCHEDULE_TYPES, schedule_from_unit_cube, schedules

from gidd.diffusion.categorical import cut_below, cut_below_max
from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules import (
    FunctionalSchedule,
    FunctionAmount,
    FunctionCurve,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    Polynomial,
    UniformSchedule,
    mask_noise,
    uniform_noise,
)
from gidd.diffusion.times import even_times, paper_nodes, stratify
from gidd.diffusion.weighting import ClampWeighting, DynamicWeighting, TightWeighting
from gidd.errors import ConfigError, GiddError, ScheduleError
from gidd.sources import HiddenMarkovSource, MarkovSource
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)
HALF = torch.full((5,), 0.1, dtype=torch.float64)

# a constructor, its error, and what the message must contain: field, value, allowed range, fix
REFUSED = {
    "gamma = 2.5": (
        lambda: HybridSchedule(VOCAB, 0.1, 2.5),
        ScheduleError,
        ["gamma", "2.5", "(0, 2]", "uses 1"],
    ),
    "gamma = 0": (
        lambda: HybridSchedule(VOCAB, 0.1, 0.0),
        ScheduleError,
        ["gamma", "0.0", "(0, 2]", "uses 1"],
    ),
    "p_u = 1": (
        lambda: HybridSchedule(VOCAB, 1.0),
        ScheduleError,
        ["p_uniform", "1.0", "[0, 1)", "UniformSchedule"],
    ),
    "p_u < 0": (
        lambda: HybridSchedule(VOCAB, -0.1),
        ScheduleError,
        ["p_uniform", "-0.1", "[0, 1)"],
    ),
    "p_u = nan": (lambda: HybridSchedule(VOCAB, float("nan")), ScheduleError, ["p_uniform", "nan"]),
    "alpha that rises": (
        lambda: MaskedSchedule(
            VOCAB, FunctionCurve(lambda t: 1 - t + 0.2 * torch.sin(2 * torch.pi * t))
        ),
        ScheduleError,
        ["alpha", "decrease from 1 to 0", "alpha(0.", "never increases"],
    ),
    "alpha that is not a number": (
        lambda: UniformSchedule(VOCAB, FunctionCurve(lambda t: 1 - t + 0 * (0.5 - t).log())),
        ScheduleError,
        ["alpha", "nan"],
    ),
    "alpha that stops early": (
        lambda: MaskedSchedule(VOCAB, FunctionCurve(lambda t: 1 - t / 2)),
        ScheduleError,
        ["alpha", "1 at t = 0 and 0 at t = 1", "0.5", "Rescale"],
    ),
    "pi that sums to 1/2": (
        lambda: MixtureSchedule(VOCAB, (MixtureComponent(HALF, LinearAmount()),)),
        ScheduleError,
        ["components[0].noise", "probability distribution", "0.5", "Divide by the sum"],
    ),
    "pi with negative entries": (
        lambda: MixtureSchedule(
            VOCAB, (MixtureComponent(HALF - 0.2 + 0.2 * 6 * mask_noise(VOCAB), LinearAmount()),)
        ),
        ScheduleError,
        ["components[0].noise", "entries >= 0", "-0.1"],
    ),
    "pi for another vocabulary": (
        lambda: MixtureSchedule(VOCAB, (MixtureComponent(torch.ones(4) / 4, LinearAmount()),)),
        ScheduleError,
        ["components[0].noise", "5 tokens", "[4]", "Append zeros"],
    ),
    "no noise at all": (
        lambda: MixtureSchedule(VOCAB, ()),
        ScheduleError,
        ["components", "at least one"],
    ),
    "functional pi that sums to 1/2": (
        lambda: FunctionalSchedule(VOCAB, lambda t: 1 - t, lambda t: t[:, None] * HALF),
        ScheduleError,
        ["beta_pi", "1 - alpha", "divide it by its sum"],
    ),
    "functional pi that is negative": (
        lambda: FunctionalSchedule(
            VOCAB,
            lambda t: 1 - t,
            lambda t: t[:, None] * (2 * mask_noise(VOCAB) - uniform_noise(VOCAB)),
        ),
        ScheduleError,
        ["beta_pi", "non-negative", "token 0"],
    ),
    "functional pi of the wrong shape": (
        lambda: FunctionalSchedule(VOCAB, lambda t: 1 - t, lambda t: t),
        ScheduleError,
        ["beta_pi", "shape", "vocabulary"],
    ),
    "noise that must be removed": (
        lambda: MixtureSchedule(
            VOCAB,
            (
                MixtureComponent(mask_noise(VOCAB), LinearAmount()),
                MixtureComponent(uniform_noise(VOCAB), FunctionAmount(lambda t: t * (1 - t) ** 3)),
            ),
        ),
        ScheduleError,
        ["inflow", "non-negative", "No Markov chain", "token 0", "never decrease"],
    ),
    "mask id outside the vocabulary": (
        lambda: Vocab(5, mask_id=5),
        ConfigError,
        ["mask_id", "5", "[0, 5)", "vocab.size"],
    ),
    "negative mask id": (lambda: Vocab(5, mask_id=-1), ConfigError, ["mask_id", "-1", "[0, 5)"]),
    "pad id outside the vocabulary": (
        lambda: Vocab(5, pad_id=7),
        ConfigError,
        ["pad_id", "7", "[0, 5)"],
    ),
    "vocabulary of one": (lambda: Vocab(1), ConfigError, ["vocab.size", "at least 2", "1"]),
    "masking without a mask": (
        lambda: MaskedSchedule(Vocab(5)),
        ScheduleError,
        ["mask_id", "None", "UniformSchedule"],
    ),
    "hybrid without a mask": (lambda: HybridSchedule(Vocab(5)), ScheduleError, ["mask_id", "None"]),
    "power of zero": (lambda: Polynomial(0.0), ScheduleError, ["power", "0.0", "positive"]),
    "negative ramp": (lambda: LinearAmount(-1.0), ScheduleError, ["weight", "-1.0", "at least 0"]),
    "dynamic weights of uniform noise": (
        lambda: DynamicWeighting(UniformSchedule(VOCAB)),
        ScheduleError,
        ["dynamic", "UniformSchedule", "TightWeighting"],
    ),
    "weights of zero": (
        lambda: ClampWeighting(MaskedSchedule(VOCAB), 0.0),
        ConfigError,
        ["w_max", "positive", "0.0"],
    ),
    "negative weights": (
        lambda: TightWeighting(MaskedSchedule(VOCAB), -1.0),
        ConfigError,
        ["w_max", "-1.0"],
    ),
    "no steps": (lambda: even_times(0), ConfigError, ["steps", "at least 1", "0"]),
    "eps of one half": (
        lambda: paper_nodes(8, eps=0.5),
        ConfigError,
        ["eps", "[0, 0.5)", "0.5", "1e-4"],
    ),
    "negative eps": (
        lambda: stratify(0.5, torch.arange(2), 2, eps=-1.0),
        ConfigError,
        ["eps", "-1.0"],
    ),
    "absolute cut-off of one": (
        lambda: cut_below(torch.ones(2) / 2, 1.0),
        ConfigError,
        ["minimum", "[0, 1)", "1.0"],
    ),
    "negative relative cut-off": (
        lambda: cut_below_max(torch.ones(2) / 2, -0.1),
        ConfigError,
        ["ratio", "-0.1"],
    ),
    "source without a distribution": (
        lambda: MarkovSource(torch.ones(2) / 2, torch.ones(2, 2)),
        ConfigError,
        ["transition", "rows sum to 1", "2", "Divide"],
    ),
    "emission without a distribution": (
        lambda: HiddenMarkovSource(torch.ones(1), torch.ones(1, 1), torch.tensor([[1.5, -0.5]])),
        ConfigError,
        ["emission", "-0.5"],
    ),
    "source larger than the vocabulary": (
        lambda: MarkovSource.random(6).leave_one_out(
            MaskedSchedule(VOCAB), torch.tensor([0.5]), torch.tensor([[1, 2]])
        ),
        ConfigError,
        ["vocab.size", "6", "5", "Vocab(7, mask_id=6)"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_settings_are_rejected_with_a_message_that_helps(case):
    build, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        build()
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert isinstance(caught.value, GiddError)
    assert isinstance(caught.value, ValueError)
    assert re.search(r"\. \S", message), f"no fix after the problem: {message}"


@pytest.mark.parametrize("kind", SCHEDULE_TYPES)
def test_the_property_tests_cover_every_built_in_schedule(kind):
    assert type(schedule_from_unit_cube(kind, VOCAB, (0.3, 0.5, 0.7))) is kind


def test_a_schedule_without_a_builder_is_an_error():
    class Unlisted(MixingSchedule):
        pass

    with pytest.raises(AssertionError, match="Unlisted .* SCHEDULE_BUILDERS"):
        schedule_from_unit_cube(Unlisted, VOCAB, (0.3, 0.5, 0.7))


@given(schedules())
def test_every_schedule_of_the_tests_passes_its_own_check(schedule):
    check(schedule)


@given(st.floats(2.001, 4))
def test_gamma_above_two_really_has_negative_rates(gamma):
    """c + (1 - t) c' < 0 for t > gamma / (2 (gamma - 1))."""
    t = torch.tensor([(1 + gamma / (2 * (gamma - 1))) / 2], dtype=torch.float64)
    bump = PeakedAmount(0.2, 2.0)
    object.__setattr__(bump, "gamma", gamma)  # as if the range were not checked
    assert bump.derivative_term(t) < 0


def test_gamma_of_two_is_allowed():
    schedule = HybridSchedule(VOCAB, 0.5, 2.0)
    t = torch.tensor([0.999999], dtype=torch.float64)
    x = torch.tensor([[0]])
    assert elbo_weight(schedule, t, x, torch.tensor([[1]])) > 0
