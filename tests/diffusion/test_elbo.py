"""The bound: its forms agree, its terms are what they are called, its ends are closed."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from support.strategies import all_pairs, as_times, data_tokens, random_x_theta, schedules
from torch import Tensor

from gidd.diffusion.elbo import (
    elbo_terms,
    full_itakura_saito,
    mdm_loss,
    prior_kl,
    reconstruction,
    step_kl,
)
from gidd.diffusion.process import backward_rates, forward_rate, marginal_at
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.diffusion.schedules import (
    Cosine,
    FunctionalSchedule,
    FunctionCurve,
    HybridSchedule,
    Linear,
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
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)


def rate_form(schedule: MixingSchedule, t: Tensor, x: int, x_theta: Tensor) -> Tensor:
    """E_z of the integrand of Prop. H.4 for one clean token, from the forward and backward rates.

    `x_theta` [V, V]: the prediction for each noisy token z.
    """
    size = schedule.vocab.size
    z = torch.arange(size)
    q = marginal_at(schedule, t, z[None], (z == x).double()[None])[0]
    z_from, z_to = torch.cartesian_prod(z, z).T[:, None]
    forward = forward_rate(schedule, t, z_from, z_to).view(size, size)  # R(z', z)
    backward = backward_rates(schedule, t, z[None], x_theta[None])[0]  # R-hat(z, z')
    total = torch.zeros(())
    for i in range(size):
        if q[i] == 0:
            continue
        total = total + q[i] * (forward[i, i] - backward[i, i])
        for j in range(size):
            flow = forward[j, i] * q[j]  # q(z) R(z', z) q(z')/q(z)
            if j != i and flow > TINY:  # below, the logarithm of a product underflows
                total = total + flow * (flow / (backward[i, j] * q[i])).log()
    return total


@pytest.mark.slow
@given(schedules(), st.floats(0.01, 0.99), st.integers(0, 99))
def test_divergence_form_equals_rate_form(schedule: MixingSchedule, time, seed):
    """Theorem 3.7 against Prop. H.4, for every clean token."""
    t, vocab = as_times([time]), schedule.vocab
    x_theta = random_x_theta(vocab, vocab.size, seed=seed)
    z = torch.arange(vocab.size)[None]
    for x in data_tokens(vocab).tolist():
        q = marginal_at(schedule, t, z, (z == x).double())
        terms = elbo_terms(schedule, t, torch.full_like(z, x), z, x_theta[None])
        integrand = (q * terms.weight * terms.divergence).sum()
        expected = rate_form(schedule, t, x, x_theta)
        torch.testing.assert_close(integrand, expected.double(), rtol=1e-9, atol=1e-11)


@given(schedules(), st.floats(0.05, 0.95), st.integers(0, 99))
def test_divergence_form_is_the_limit_of_short_steps(schedule: MixingSchedule, time, seed):
    """KL(q(z_s | z_t, x) || p_theta(z_s | z_t)) / (t - s) -> weight * divergence, pointwise."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = all_pairs(vocab)
    possible = marginal_at(schedule, t, z[None], (x == z).double()[None])[0] > 1e-9
    x, z = x[possible][None], z[possible][None]
    x_theta = random_x_theta(vocab, 1, z.shape[1], seed=seed)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    rates = [step_kl(schedule, t - h, t, x, z, x_theta) / h for h in (1e-4, 5e-5)]
    limit = 2 * rates[1] - rates[0]
    expected = terms.weight * terms.divergence
    torch.testing.assert_close(limit, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))


@given(schedules(), st.floats(1e-3, 1 - 1e-3), st.integers(0, 99))
def test_divergence_is_zero_only_for_the_perfect_denoiser(schedule: MixingSchedule, time, seed):
    """Prop. 3.9. Where the weight is zero the prediction is free, so only weighted terms count."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = (v[None] for v in all_pairs(vocab))
    perfect = F.one_hot(x, vocab.size).double()
    terms = elbo_terms(schedule, t, x, z, perfect)
    assert terms.kl.abs().max() < 1e-14
    possible = marginal_at(schedule, t, z, (x == z).double()) > 0
    assert terms.itakura_saito[possible].abs().max() < 1e-14

    terms = elbo_terms(schedule, t, x, z, random_x_theta(vocab, *x.shape, seed=seed))
    assert (terms.kl >= 0).all()
    assert (terms.itakura_saito >= 0).all()
    assert (terms.divergence[terms.weight > 0] > 0).all()


@given(schedules(), st.floats(1e-4, 1 - 1e-4), st.integers(0, 99))
def test_end_terms_are_steps_of_the_chain(schedule: MixingSchedule, time, seed):
    """Reconstruction is the step to s = 0, the prior's KL the step from t = 1."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = (v[None] for v in all_pairs(vocab))
    x_theta = random_x_theta(vocab, *x.shape, seed=seed)
    possible = marginal_at(schedule, t, z, (x == z).double()) > 1e-12
    zero, one = torch.zeros_like(t), torch.ones_like(t)
    last = step_kl(schedule, zero, t, x, z, x_theta)
    actual = reconstruction(schedule, t, x, z, x_theta)
    torch.testing.assert_close(actual[possible], last[possible], rtol=1e-7, atol=1e-12)
    possible = marginal_at(schedule, one, z, torch.zeros_like(x).double()) > 1e-12
    first = step_kl(schedule, t, one, x, z, x_theta)
    actual = prior_kl(schedule, t, x, x_theta)
    torch.testing.assert_close(actual[possible], first[possible], rtol=1e-7, atol=1e-12)


@given(st.floats(1e-4, 1 - 1e-4), st.integers(0, 99))
@pytest.mark.parametrize(
    "curve", [Linear(), Cosine(), Polynomial(3), FunctionCurve(lambda t: (1 - t) ** 2)]
)
def test_masked_elbo_is_the_mdm_loss(curve, time, seed):
    """Cor. 3.8, to 1e-12, for every mixing rate; z is what masking can make of x."""
    t, schedule = as_times([time]), MaskedSchedule(VOCAB, curve)
    x = data_tokens(VOCAB).repeat(2)[None]
    z = torch.cat([x[:, :4], torch.full((1, 4), VOCAB.mask_id)], dim=-1)
    x_theta = random_x_theta(VOCAB, *x.shape, seed=seed)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    expected = mdm_loss(schedule, t, x, z, x_theta)
    torch.testing.assert_close(terms.weight * terms.divergence, expected, rtol=1e-12, atol=0)
    beta_slope = torch.func.jvp(curve.beta, (t,), (torch.ones_like(t),))[1]
    written_out = -beta_slope / curve.beta(t) * x_theta.gather(-1, x[..., None])[..., 0].log()
    torch.testing.assert_close(expected[:, 4:], written_out[:, 4:], rtol=1e-9, atol=0)


def test_mdm_loss_without_a_mask_is_refused():
    with pytest.raises(ScheduleError, match=r"vocab\.mask_id is None.*elbo_terms"):
        x = torch.zeros(1, 1, dtype=torch.long)
        mdm_loss(UniformSchedule(Vocab(3)), as_times([0.5]), x, x, torch.ones(1, 1, 3) / 3)


@pytest.mark.slow
@given(st.floats(0, 0.9), st.floats(0.1, 2), st.floats(1e-3, 1 - 1e-3))
def test_three_ways_to_write_the_hybrid_schedule(p_uniform, gamma, time):
    """functional(hybrid) = hybrid = mixture of a mask ramp and a uniform bump."""
    t, hybrid = as_times([time]), HybridSchedule(VOCAB, p_uniform, gamma)
    functional = FunctionalSchedule(VOCAB, hybrid.alpha, hybrid.beta_pi)
    mixture = MixtureSchedule(
        VOCAB,
        (
            MixtureComponent(mask_noise(VOCAB), LinearAmount()),
            MixtureComponent(uniform_noise(VOCAB), PeakedAmount(p_uniform, gamma)),
        ),
    )
    for other in (functional, mixture):
        torch.testing.assert_close(other.alpha(t), hybrid.alpha(t), rtol=1e-12, atol=0)
        torch.testing.assert_close(other.beta_pi(t), hybrid.beta_pi(t), rtol=1e-12, atol=1e-16)
        scale = float(hybrid.inflow(t).max())
        torch.testing.assert_close(
            other.inflow(t), hybrid.inflow(t), rtol=1e-10, atol=1e-13 * scale
        )


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.1, 2))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_uniform_noise_is_masked_diffusion_to_the_last_bit(dtype, time, gamma):
    t = torch.tensor([time], dtype=dtype)
    hybrid, masked = HybridSchedule(VOCAB, 0.0, gamma), MaskedSchedule(VOCAB)
    assert torch.equal(hybrid.alpha(t), masked.alpha(t))
    assert torch.equal(hybrid.beta_pi(t), masked.beta_pi(t))
    assert torch.equal(hybrid.inflow(t), masked.inflow(t))


@given(schedules(), st.floats(1e-3, 1 - 1e-3), st.integers(0, 99))
def test_full_itakura_saito_is_a_looser_bound(schedule: MixingSchedule, time, seed):
    """Remark H.6: the sum over tokens is at least the term at z; infinite for mask-only noise."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = (v[None] for v in all_pairs(vocab))
    x_theta = random_x_theta(vocab, *x.shape, seed=seed)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    full = full_itakura_saito(schedule, t, x, x_theta)
    possible = marginal_at(schedule, t, z, (x == z).double()) > 0
    assert (full >= terms.itakura_saito - 1e-12)[possible].all()
    reached = schedule.beta_pi(t)[0, data_tokens(vocab)]
    assert full.isfinite().all() == bool((reached > 0).all())
    perfect = F.one_hot(x, vocab.size).double()
    assert full_itakura_saito(schedule, t, x, perfect).abs().max() < 1e-12
