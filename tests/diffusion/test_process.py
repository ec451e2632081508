"""Properties of every schedule: Markov transitions, rates and the reverse process."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from support.strategies import all_pairs, as_times, data_tokens, random_x_theta, schedules, times
from torch import Tensor

from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.process import (
    Transition,
    backward_rates,
    forward_rate,
    marginal,
    marginal_at,
    noise,
    posterior,
    prior,
    sample_prior,
    transition,
)
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, UniformSchedule
from gidd.vocab import Vocab


def matrix(step: Transition) -> Tensor:
    """Q_{t|s} [B, V, V], columns are distributions: Q[:, j, i] = q(z_t = j | z_s = i)."""
    size = step.beta_pi.shape[-1]
    eye = torch.eye(size, dtype=step.alpha.dtype)
    return step.alpha[:, None, None] * eye + step.beta_pi[:, :, None].expand(-1, -1, size)


def central_difference(function, t: Tensor, h: float = 1e-4) -> Tensor:
    """Slope by two central differences, extrapolated: error of order h^4."""
    wide = (function(t + h) - function(t - h)) / (2 * h)
    narrow = (function(t + h / 2) - function(t - h / 2)) / h
    return (4 * narrow - wide) / 3


@given(schedules(), times, st.integers(0, 9))
def test_marginals_are_distributions(schedule: MixingSchedule, values, seed):
    t = as_times(values)
    assert (schedule.beta_pi(t) >= 0).all()
    torch.testing.assert_close(schedule.beta_pi(t).sum(-1), 1 - schedule.alpha(t))
    q = marginal(schedule, t, random_x_theta(schedule.vocab, len(t), 3, seed=seed))
    assert (q >= 0).all()
    torch.testing.assert_close(q.sum(-1), torch.ones_like(q[..., 0]))


@given(schedules())
def test_noise_begins_with_nothing_and_ends_with_everything(schedule: MixingSchedule):
    ends = as_times([0.0, 1.0])
    torch.testing.assert_close(schedule.alpha(ends), as_times([1.0, 0.0]), rtol=0, atol=1e-12)
    assert schedule.beta_pi(ends)[0].abs().max() < 1e-12
    torch.testing.assert_close(prior(schedule, ends), schedule.beta_pi(ends)[1])


@given(schedules(), st.lists(st.floats(0, 0.999), min_size=3, max_size=3))
def test_chapman_kolmogorov(schedule: MixingSchedule, values):
    """Q_{t|r} = Q_{t|s} Q_{s|r}, and Q_{t|0} gives the marginals (Prop. 3.3, Cor. 3.4)."""
    r, s, t = as_times(sorted(values)).split(1)
    two_steps = matrix(transition(schedule, s, t)) @ matrix(transition(schedule, r, s))
    one_step = matrix(transition(schedule, r, t))
    torch.testing.assert_close(two_steps, one_step, rtol=1e-9, atol=1e-12)
    assert (one_step >= 0).all()
    torch.testing.assert_close(one_step.sum(-2), torch.ones_like(one_step[:, 0]))

    size = schedule.vocab.size
    clean = torch.eye(size, dtype=torch.float64)[None]
    from_data = matrix(transition(schedule, torch.zeros_like(t), t)).mT
    torch.testing.assert_close(marginal(schedule, t, clean), from_data)


@pytest.mark.slow
@given(schedules(), st.floats(0.05, 0.95))
def test_forward_rates_are_slopes_of_the_transitions(schedule: MixingSchedule, time):
    """R_t(z_s, z_t) = d/dt q_{t|s}(z_t | z_s) at s = t (Def. 3.5, Lemma 3.6)."""
    t, size = as_times([time]), schedule.vocab.size
    z_from, z_to = torch.cartesian_prod(torch.arange(size), torch.arange(size)).T[:, None]
    rate = forward_rate(schedule, t, z_from, z_to)
    # one-sided, as no transition goes back in time; extrapolated twice
    steps = [1e-3, 5e-4, 2.5e-4]
    slopes = [(matrix(transition(schedule, t, t + h)) - torch.eye(size)) / h for h in steps]
    first = [2 * slopes[1] - slopes[0], 2 * slopes[2] - slopes[1]]
    slope = (4 * first[1] - first[0]) / 3
    expected = slope.mT.reshape(1, -1)
    torch.testing.assert_close(rate, expected, rtol=1e-4, atol=1e-5 * float(rate.abs().max()))
    torch.testing.assert_close(
        rate.unflatten(-1, (size, size)).sum(-1), torch.zeros(1, size).double(), rtol=0, atol=1e-9
    )


@pytest.mark.slow
@given(schedules(), st.floats(0.05, 0.95), st.integers(0, 9))
def test_backward_rates_are_slopes_of_the_posterior(schedule: MixingSchedule, time, seed):
    """R-hat_t(z_t, z_s) = d/dDelta p_theta(z_{t - Delta} | z_t) at Delta = 0 (Lemma H.3)."""
    t, size = as_times([time]), schedule.vocab.size
    x_theta = random_x_theta(schedule.vocab, 1, 1, seed=seed).expand(-1, size, -1)
    z = torch.arange(size)[None]
    possible = marginal_at(schedule, t, z, x_theta.diagonal(dim1=1, dim2=2)) > 1e-6
    rates = backward_rates(schedule, t, z, x_theta)[possible]
    steps = [1e-4, 5e-5, 2.5e-5]
    now = F.one_hot(z, size).double()
    slopes = [(posterior(schedule, t - h, t, z, x_theta) - now)[possible] / h for h in steps]
    first = [2 * slopes[1] - slopes[0], 2 * slopes[2] - slopes[1]]
    slope = (4 * first[1] - first[0]) / 3
    torch.testing.assert_close(rates, slope, rtol=1e-4, atol=1e-5 * float(rates.abs().max()))


@given(schedules(), st.floats(0.02, 0.98))
def test_inflow_is_alpha_times_the_slope_of_noise_to_signal(schedule: MixingSchedule, time):
    """beta pi' - (alpha'/alpha) pi = alpha d/dt (beta pi / alpha) (App. H.8), numerically."""
    t = as_times([time])
    slope = central_difference(lambda t: schedule.beta_pi(t) / schedule.alpha(t)[:, None], t)
    expected = schedule.alpha(t)[:, None] * slope
    scale = float(expected.abs().max())
    torch.testing.assert_close(schedule.inflow(t), expected, rtol=1e-6, atol=1e-7 * scale)


@given(schedules(), st.floats(0.02, 0.98))
def test_mean_elbo_weight_is_minus_alpha_ratio(schedule: MixingSchedule, time):
    """E_z[w_t(z, x)] = -alpha'/alpha for every x (Lemma H.5)."""
    t, vocab = as_times([time]), schedule.vocab
    x, z = all_pairs(vocab)
    keeps = (x == z).double()[None]
    q = marginal_at(schedule, t, z[None], keeps)
    weighted = q * elbo_weight(schedule, t, x[None], z[None])
    mean = weighted.unflatten(-1, (vocab.num_data_tokens, vocab.size)).sum(-1)
    alpha_ratio = central_difference(schedule.alpha, t) / schedule.alpha(t)
    torch.testing.assert_close(mean, -alpha_ratio.expand_as(mean), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@given(schedules(), st.lists(st.floats(0, 0.999), min_size=2, max_size=2), st.integers(0, 9))
def test_posteriors_normalise_and_satisfy_bayes(schedule: MixingSchedule, values, seed):
    """Sum over z_s is 1; q(z_s | z_t, x) q_t(z_t | x) = q_{t|s}(z_t | z_s) q_s(z_s | x): Eq. 12."""
    s, t = as_times(sorted(values)).split(1)
    size = schedule.vocab.size
    z = torch.arange(size)[None]
    model = random_x_theta(schedule.vocab, 1, 1, seed=seed)
    clean = F.one_hot(data_tokens(schedule.vocab)[:1], size).double()[None]
    for x_theta in (model, clean):
        step = posterior(schedule, s, t, z, x_theta.expand(-1, size, -1))
        q_t = marginal(schedule, t, x_theta)[0, 0]
        q_s = marginal(schedule, s, x_theta)[0, 0]
        possible = q_t > 1e-12
        torch.testing.assert_close(
            step[0, possible].sum(-1), torch.ones_like(q_t[possible]), rtol=1e-7, atol=0
        )
        joint = matrix(transition(schedule, s, t))[0] * q_s  # [z_t, z_s]
        torch.testing.assert_close(step[0] * q_t[:, None], joint, rtol=1e-9, atol=1e-12)
        # and so a reverse step takes q_t to q_s
        torch.testing.assert_close(q_t @ step[0], q_s, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(schedules(), st.floats(0.01, 0.99))
def test_noised_tokens_have_the_marginal_distribution(schedule: MixingSchedule, time):
    """Frequencies of z_t match q_t(. | x) to 5 standard errors."""
    vocab, num = schedule.vocab, 20_000
    x = data_tokens(vocab)[-1].expand(1, num)
    t = as_times([time])
    u = random_integers(7, Stream.NOISE, 0, torch.tensor([3]), torch.arange(num))
    z = noise(schedule, t, x, u)
    frequency = torch.bincount(z[0], minlength=vocab.size) / num
    q = marginal(schedule, t, F.one_hot(x[:, :1], vocab.size).double())[0, 0]
    error = (q * (1 - q) / num).sqrt()
    assert ((frequency - q).abs() <= 5 * error + 1e-12).all()


@pytest.mark.slow
def test_noised_tokens_have_the_marginal_law_at_full_size(device):
    """The same at V = 50,258, for the kinds of token that can be counted: mask, kept, replaced."""
    vocab, num = Vocab(50258, mask_id=50257), 1 << 20
    schedule = HybridSchedule(vocab, p_uniform=0.2)
    x = torch.full((4, num // 4), 31337, device=device)
    t = torch.tensor([0.01, 0.3, 0.7, 0.999], device=device)
    samples = torch.arange(4, device=device)
    u = random_integers(1, Stream.NOISE, 5, samples, torch.arange(num // 4, device=device))
    z = noise(schedule, t, x, u)
    kinds = torch.stack([(z == vocab.mask_id), (z == x), (z != x) & (z != vocab.mask_id)])
    frequency = kinds.double().mean(-1).cpu()
    alpha, beta_pi = schedule.alpha(t.cpu().double()), schedule.beta_pi(t.cpu().double())
    mask, kept = beta_pi[:, -1], alpha + beta_pi[:, 31337]
    expected = torch.stack([mask, kept, 1 - mask - kept])
    error = (expected * (1 - expected) / (num // 4)).sqrt()
    assert ((frequency - expected).abs() <= 5 * error).all()
    # replaced tokens are spread evenly over the vocabulary: 64 bins of tokens
    replaced = z[(z != x) & (z != vocab.mask_id)].cpu()
    counts = torch.bincount(replaced * 64 // 50257, minlength=64).double()
    assert ((counts - len(replaced) / 64).abs() < 5 * (len(replaced) / 64) ** 0.5).all()


@pytest.mark.parametrize(
    "schedule", [UniformSchedule(Vocab(6)), HybridSchedule(Vocab(6, mask_id=2))]
)
def test_prior_samples(schedule, device):
    u = random_integers(
        0, Stream.PRIOR, 0, torch.arange(8, device=device), torch.arange(1000, device=device)
    )
    z = sample_prior(schedule, u).cpu()
    if schedule.vocab.mask_id is None:
        frequency = torch.bincount(z.flatten(), minlength=6) / z.numel()
        assert ((frequency - 1 / 6).abs() < 5 * (5 / 36 / z.numel()) ** 0.5).all()
    else:
        assert (z == schedule.vocab.mask_id).all()
