"""Weightings: their values, their bounds, and what each teaches about the visible token."""

import pytest
import torch
from hypothesis import given, strategies as st
from support.strategies import (
    WEIGHTING_TYPES,
    all_pairs,
    as_times,
    default_weighting,
    schedule_from_unit_cube,
    schedules,
)

from gidd.diffusion.constants import PAPER_CEILING
from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.process import marginal_at
from gidd.diffusion.schedules import (
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.diffusion.weighting import (
    ClampWeighting,
    DynamicWeighting,
    ElboWeighting,
    TightWeighting,
    Weighting,
)
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

GPT2 = Vocab(50258, mask_id=50257)


@pytest.mark.parametrize("kind", WEIGHTING_TYPES)
def test_the_property_tests_cover_every_built_in_weighting(kind):
    assert type(default_weighting(kind, MaskedSchedule(Vocab(5, mask_id=4)))) is kind


def test_a_weighting_without_a_builder_is_an_error():
    class Unlisted(Weighting):
        pass

    with pytest.raises(AssertionError, match="Unlisted .* WEIGHTING_BUILDERS"):
        default_weighting(Unlisted, MaskedSchedule(Vocab(5, mask_id=4)))


@pytest.mark.slow
@given(schedules(), st.floats(1e-4, 1 - 1e-4))
def test_weights_are_defined_finite_and_non_negative(schedule, time):
    """Every weighting with every schedule; dynamic weights raise an error where undefined."""
    t = as_times([time])
    x, z = (v[None] for v in all_pairs(schedule.vocab))
    for weighting in WEIGHTING_TYPES:
        if weighting is DynamicWeighting and not isinstance(
            schedule, HybridSchedule | MaskedSchedule
        ):
            with pytest.raises(ScheduleError, match="TightWeighting"):
                default_weighting(weighting, schedule)
            continue
        weight = default_weighting(weighting, schedule)(t, x, z)
        assert weight.shape == z.shape
        assert weight.dtype == t.dtype
        assert weight.isfinite().all()
        assert (weight >= 0).all()


@pytest.mark.slow
@given(schedules(), st.floats(1e-4, 1 - 1e-4), st.floats(0.1, 10))
def test_bounds(schedule, time, w_max):
    t = as_times([time])
    x, z = (v[None] for v in all_pairs(schedule.vocab))
    elbo = ElboWeighting(schedule)(t, x, z)
    assert torch.equal(elbo, elbo_weight(schedule, t, x, z))
    clamp = ClampWeighting(schedule, w_max)(t, x, z)
    assert torch.equal(clamp, elbo.clamp_max(w_max))
    tight = TightWeighting(schedule, w_max)(t, x, z)
    assert (tight <= 2 * w_max * (1 + 1e-12)).all()
    replaced = (z != x) & (marginal_at(schedule, t, z, torch.zeros_like(t)[:, None]) > 1e-12)
    is_mask = (z == schedule.vocab.mask_id) if schedule.vocab.mask_id is not None else z < 0
    expected = torch.where(is_mask, 2 * w_max, w_max).double()
    torch.testing.assert_close(tight[replaced], expected[replaced])


@given(schedules(), st.floats(1e-4, 1 - 1e-4))
def test_tight_weights_keep_the_ratios_of_the_elbo(schedule, time):
    """For a given z, tight / elbo does not depend on x: that is what keeps the minimiser."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = (v[None] for v in all_pairs(vocab))
    tight = TightWeighting(schedule)(t, x, z)
    elbo = ElboWeighting(schedule)(t, x, z)
    # across-x determinant: tight(x) elbo(x') = tight(x') elbo(x)
    tight, elbo = (w.view(vocab.num_data_tokens, vocab.size) for w in (tight, elbo))
    torch.testing.assert_close(tight * elbo[:1], tight[:1] * elbo, rtol=1e-9, atol=1e-12)


def test_the_papers_ceiling():
    """The ELBO's mask weight at t = 1e-4 is 10,001: just above the ceiling of 1e4."""
    schedule = HybridSchedule(GPT2, 0.1)
    t, z = as_times([1e-4]), torch.tensor([[50257]])
    assert float(ElboWeighting(schedule)(t, z * 0, z)) == pytest.approx(1 / (1e-4 * (1 - 1e-4)))
    assert float(ClampWeighting(schedule, PAPER_CEILING)(t, z * 0, z)) == 1e4


ODDS = {  # odds boost of the visible token over the leave-one-out posterior, p_u = 0.2; 1 is right
    1e-4: {ElboWeighting: 1.0, DynamicWeighting: 7.1, ClampWeighting: 5001, TightWeighting: 1.0},
    0.01: {ElboWeighting: 1.0, DynamicWeighting: 2.4, ClampWeighting: 50.5, TightWeighting: 1.0},
    0.1: {ElboWeighting: 1.0, DynamicWeighting: 1.6, ClampWeighting: 5.6, TightWeighting: 1.0},
    0.5: {ElboWeighting: 1.0, DynamicWeighting: 1.2, ClampWeighting: 2.0, TightWeighting: 1.0},
}


@pytest.mark.parametrize("weighting", WEIGHTING_TYPES)
@pytest.mark.parametrize("time", ODDS)
def test_odds_boost_of_the_visible_token(time, weighting):
    """x* is proportional to p(x | rest) q_t(z | x) w(z, x): the boost is a ratio of weights."""
    schedule, t = HybridSchedule(GPT2, 0.2), as_times([time])
    z, x = torch.tensor([[7, 7]]), torch.tensor([[7, 8]])
    q = marginal_at(schedule, t, z, (x == z).double())
    kept, replaced = (q * default_weighting(weighting, schedule)(t, x, z))[0]
    expected = ODDS[time][weighting]
    exact = expected == 1.0
    assert float(kept / replaced) == pytest.approx(expected, rel=1e-9 if exact else 0.03)


def test_dynamic_weights_of_masked_diffusion():
    """B = 0: twice w_max on masks, nothing on visible tokens."""
    schedule, t = MaskedSchedule(Vocab(5, mask_id=4)), as_times([0.3])
    x, z = torch.tensor([[1, 1]]), torch.tensor([[4, 1]])
    assert DynamicWeighting(schedule, w_max=3.0)(t, x, z).tolist() == [[6.0, 0.0]]


def test_tight_weights_need_no_mask():
    for schedule in (
        UniformSchedule(Vocab(4)),
        schedule_from_unit_cube(MixtureSchedule, Vocab(4), (0.5,) * 3),
    ):
        x, z = torch.tensor([[1, 1]]), torch.tensor([[1, 2]])
        kept, replaced = TightWeighting(schedule)(as_times([0.5]), x, z)[0]
        assert 0 < kept < replaced
        assert float(replaced) == pytest.approx(1.0)
