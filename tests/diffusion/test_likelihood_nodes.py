"""Likelihoods by quadrature in t: what is right, what is biased, and by how much."""

import json
from pathlib import Path

import pytest
import torch
from support.cases import few
from support.strategies import SCHEDULE_TYPES, schedule_from_unit_cube
from torch import Tensor

from gidd.diffusion.elbo import elbo_terms, prior_kl, reconstruction, step_kl
from gidd.diffusion.process import marginal_at, posterior
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import paper_nodes, sine_midpoints
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld, exact_nodes, unigram_nelbo
from gidd.vocab import Vocab

ORACLE = json.loads((Path(__file__).parents[1] / "golden" / "oracle_elbo.json").read_text())
SMALL = Vocab(ORACLE["N"], mask_id=ORACLE["mask_id"])


# --------------------------------------------------- a one-token Zipf text with the exact denoiser

EPS = ORACLE["eps"]


def zipf(num_tokens: int, exponent: float = 1.6) -> Tensor:
    """Zipf, 0 on the mask; over 50,257 tokens 1.6 has an entropy of 2.70 nats, 1.0 of 7.57."""
    p = torch.arange(1, num_tokens + 1, dtype=torch.float64) ** -exponent
    return torch.cat([p / p.sum(), torch.zeros(1).double()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule_type", "nodes"),
    few(SCHEDULE_TYPES, [exact_nodes(16), sine_midpoints(8), paper_nodes(8)], every=4),
)
def test_unigram_nelbo_counts_every_pair(schedule_type, nodes):
    """The O(V) sum against `elbo_terms` for all pairs, for every schedule."""
    schedule = schedule_from_unit_cube(schedule_type, Vocab(13, mask_id=12), (0.4, 0.5, 0.6))
    distribution = zipf(12)
    source = MarkovSource(distribution[:12], torch.eye(12).double())
    world = SmallWorld(source, schedule, length=1)
    direct = world.nelbo(lambda z, t: distribution.expand(len(z), 1, -1), nodes)
    assert unigram_nelbo(schedule, distribution, nodes) == pytest.approx(direct, rel=1e-11)


@pytest.mark.slow
def test_ends_are_the_reconstruction_and_the_first_step():
    """For the exact denoiser of one token, the single steps cost what the integrals cost."""
    schedule, distribution = HybridSchedule(Vocab(41, mask_id=40), 0.2), zipf(40)
    x, z = torch.cartesian_prod(torch.arange(40), torch.arange(41)).T[:, None]
    x_theta = distribution.expand(1, z.shape[1], -1)
    t = torch.tensor([EPS], dtype=torch.float64)
    q = marginal_at(schedule, t, z, (x == z).double())
    last = float((distribution[x] * q * reconstruction(schedule, t, x, z, x_theta)).sum())
    assert last == pytest.approx(
        unigram_nelbo(schedule, distribution, exact_nodes(128, 0, EPS)), rel=1e-8
    )
    x = torch.arange(40)[None]
    first = float((distribution[x] * prior_kl(schedule, 1 - t, x, x_theta[:, :40])).sum())
    assert first == pytest.approx(
        unigram_nelbo(schedule, distribution, exact_nodes(128, 1 - EPS, 1)), rel=1e-4
    )


FULL_SIZE = [(1.6, 0.1, 0.29), (1.6, 0.2, 0.58), (1.0, 0.1, 0.92), (1.0, 0.2, 1.93)]


@pytest.mark.parametrize(
    ("size", "exponent", "p_uniform", "bias"),
    [
        (5026, 1.6, 0.2, 0.70),
        *(pytest.param(50_258, *case, marks=pytest.mark.long) for case in FULL_SIZE),
    ],
)
def test_sine_nodes_are_right_and_the_even_grid_is_biased(size, exponent, p_uniform, bias):
    """V = 50,258, T = 128: within 1e-3 nats of the entropy, against +0.29 and +0.58 (and more).

    The mean over shifts, which is what a random shift has as its expectation, is within 5e-5. CI
    has a tenth of the vocabulary.
    """
    schedule = HybridSchedule(Vocab(size, mask_id=size - 1), p_uniform)
    distribution = zipf(size - 1, exponent)
    entropy = float(torch.special.entr(distribution).sum())
    ends = sum(
        unigram_nelbo(schedule, distribution, exact_nodes(128, *interval))
        for interval in ((0.0, EPS), (1 - EPS, 1.0))
    )
    measured = unigram_nelbo(schedule, distribution, sine_midpoints(128)) + ends
    assert measured == pytest.approx(entropy, abs=1e-3)
    shifted = [sine_midpoints(128, shift=(k + 0.5) / 8) for k in range(8)]
    mean = sum(unigram_nelbo(schedule, distribution, nodes) for nodes in shifted) / 8 + ends
    assert mean == pytest.approx(entropy, abs=5e-5)
    biased = unigram_nelbo(schedule, distribution, paper_nodes(128)) + ends
    assert biased - entropy == pytest.approx(bias, abs=0.01)
    assert unigram_nelbo(schedule, distribution) == pytest.approx(entropy, abs=1e-9)


@pytest.mark.parametrize("nodes", [sine_midpoints(128), paper_nodes(128)])
def test_mask_only_likelihoods_are_right_on_any_nodes(nodes):
    """With the exact denoiser the integrand is the entropy at every t."""
    distribution = zipf(257)
    entropy = float(torch.special.entr(distribution).sum())
    nelbo = unigram_nelbo(HybridSchedule(Vocab(258, mask_id=257), 0.0), distribution, nodes)
    assert nelbo == pytest.approx(entropy * float(nodes.weight.sum()), rel=1e-9)


# --------------------------------------------- chains and integrals of texts with one or two tokens


def integral(schedule, x, x_theta, z, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Integral over [low, high] of sum_z q_t(z | x) sum_i w (KL + IS), for each text of x [X, L].

    `x_theta` [Z, L, V] is the prediction for each noisy text of `z` [Z, L], at all times.
    """
    nodes = exact_nodes(160, low, high)
    shape = (len(nodes.t), len(x), len(z))
    t, x_index, z_index = (
        index.flatten() for index in torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    )
    t = nodes.t[t]
    x, z, x_theta = x[x_index], z[z_index], x_theta[z_index]
    q = marginal_at(schedule, t, z, (x == z).double()).prod(-1)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    cost = torch.where(q > 0, q * (terms.weight * terms.divergence).sum(-1), 0)
    return nodes.weight @ cost.view(shape).sum(-1)


def texts(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clean texts, noisy texts, and the oracle's fixed predictions."""
    x, z = (torch.cartesian_prod(*[torch.arange(n)] * length).reshape(-1, length) for n in (4, 5))
    x_theta = torch.tensor(ORACLE[f"x_theta_L{length}"], dtype=torch.float64)
    return x, z, x_theta.view(len(z), length, 5)


@pytest.mark.parametrize("row", ORACLE["L1"], ids=lambda r: f"{r['gamma']}-{r['p_u']}")
def test_oracle_integrals_of_one_token(row):
    """oracle_elbo.json: the complete integral and its two ends outside [eps, 1 - eps]."""
    schedule = HybridSchedule(SMALL, row["p_u"], row["gamma"])
    x, z, x_theta = texts(1)
    for name, low, high in (
        ("nelbo_int_0_1", 0.0, 1.0),
        ("nelbo_int_eps", EPS, 1 - EPS),
        ("int_0_eps", 0.0, EPS),
        ("int_1meps_1", 1 - EPS, 1.0),
    ):
        actual = integral(schedule, x, x_theta, z, low, high)
        expected = torch.tensor(row[name], dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("row", ORACLE["L2"], ids=lambda r: f"{r['p_u']}")
def test_oracle_integrals_of_two_tokens(row):
    schedule = HybridSchedule(SMALL, row["p_u"], row["gamma"])
    x, z, x_theta = texts(2)
    actual = integral(schedule, x, x_theta, z)
    expected = torch.tensor(row["nelbo_int_0_1"], dtype=torch.float64).flatten()
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)
    actual = integral(schedule, x, x_theta, z, EPS, 1 - EPS)
    expected = torch.tensor(row["nelbo_int_eps"], dtype=torch.float64).flatten()
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


def chain_log_likelihood(schedule, x_theta: Tensor, z: Tensor, num_steps: int) -> Tensor:
    """-log p(x) of every text under the reverse chain on an even grid, by multiplying kernels."""
    times = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
    distribution = schedule.beta_pi(times[:1])[0][z].prod(-1)
    for t, s in zip(times[:-1], times[1:], strict=True):
        step = posterior(schedule, s.expand(len(z)), t.expand(len(z)), z, x_theta)
        kernel = torch.ones(len(z), len(z), dtype=torch.float64)
        for i in range(z.shape[1]):
            kernel = kernel * step[:, i, z[:, i]]
        distribution = distribution @ kernel
    return -distribution[(z < 4).all(-1)].log()


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize(
    ("num_steps", "every"),
    [(10, 1), (100, 1), (1000, 9), pytest.param(1000, 1, marks=pytest.mark.long)],
)
def test_oracle_likelihoods_of_discrete_chains(length, num_steps, every):
    """oracle_elbo.json: exact likelihoods of chains with 10, 100 and (CI: some with) 1000 steps."""
    _, z, x_theta = texts(length)
    for row in ORACLE[f"L{length}"][::every]:
        schedule = HybridSchedule(SMALL, row["p_u"], row["gamma"])
        actual = chain_log_likelihood(schedule, x_theta, z, num_steps)
        expected = torch.tensor(row[f"neglogp_T{num_steps}"], dtype=torch.float64).flatten()
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("num_steps", [10, 100, 1000])
def test_oracle_bounds_of_discrete_chains(length, num_steps):
    """oracle_elbo.json: the sum of step KLs on the even grid, whose constant C is zero."""
    _, z, x_theta = texts(length)
    times = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
    for row in ORACLE["discrete_nelbo" + ("" if length == 1 else "_L2")]:
        schedule = HybridSchedule(SMALL, row["p_u"], row["gamma"])
        x = torch.tensor(row["x"]).expand_as(z)
        t, s = (each.repeat_interleave(len(z)) for each in (times[:-1], times[1:]))
        every_z, every_x = z.repeat(num_steps, 1), x.repeat(num_steps, 1)
        q = marginal_at(schedule, t, every_z, (every_x == every_z).double()).prod(-1)
        cost = step_kl(schedule, s, t, every_x, every_z, x_theta.repeat(num_steps, 1, 1)).sum(-1)
        assert float((q * cost)[q > 0].sum()) == pytest.approx(row[f"nelbo_T{num_steps}"], rel=1e-9)


TRUNCATION = {  # p_u: reconstruction at eps, KL of the first step (gamma = 1, L = 1, x = 1)
    0.0: (2.36e-4, 2.36e-4),
    0.05: (0.012982, 2.3e-5),
    0.1: (0.025846, 1.2e-5),
    0.2: (0.054546, 5.4e-6),
    0.5: (0.191309, 1.4e-6),
}


@pytest.mark.parametrize("p_uniform", TRUNCATION)
def test_what_lies_outside_eps(p_uniform):
    """Integral over [eps, 1 - eps] + reconstruction + prior: positive costs, near the full one."""
    schedule, eps = HybridSchedule(SMALL, p_uniform), EPS
    _, z, x_theta = texts(1)
    x = torch.ones_like(z)
    t = torch.full((len(z),), eps, dtype=torch.float64)
    q = marginal_at(schedule, t, z, (x == z).double())
    rec = (q * reconstruction(schedule, t, x, z, x_theta))[q > 0].sum()
    first = prior_kl(schedule, 1 - t[:1], x[:1], x_theta[4:])[0, 0]  # predicted from a mask
    expected_rec, expected_first = TRUNCATION[p_uniform]
    assert float(rec) == pytest.approx(expected_rec, rel=0.01)
    assert float(first) == pytest.approx(expected_first, rel=0.05)
    (row,) = (r for r in ORACLE["L1"] if (r["gamma"], r["p_u"]) == (1.0, p_uniform))
    full = row["nelbo_int_eps"][1] + float(rec) + float(first)
    # two single steps stand for the two ends: the bound can only be a little higher
    assert row["nelbo_int_0_1"][1] - 2e-6 < full < row["nelbo_int_0_1"][1] + 5e-4


@pytest.mark.parametrize("row", ORACLE["mdm_limit"], ids=lambda r: f"{r['p_u']:.0e}")
def test_little_uniform_noise_tends_to_masked_diffusion(row):
    """oracle_elbo.json: for a positive x_theta the bound is continuous as p_u -> 0."""
    schedule = HybridSchedule(SMALL, row["p_u"])
    _, z, x_theta = texts(1)
    x = torch.ones(1, 1, dtype=torch.long)
    actual = integral(schedule, x, x_theta, z)
    assert float(actual) == pytest.approx(row["int_full"], rel=1e-7)  # the figure's own error
    masked = integral(HybridSchedule(SMALL, 0.0), x, x_theta, z)
    assert float(masked) == pytest.approx(row["mdm"], rel=1e-9)
    assert float(masked) == pytest.approx(float(-x_theta[4, 0, 1].log()), rel=1e-9)


def test_the_limit_is_not_uniform():
    """A denoiser that is confidently wrong on visible tokens has a cost for p_u > 0, not at 0."""
    _, z, x_theta = texts(1)
    x = torch.ones(1, 1, dtype=torch.long)
    wrong = x_theta.clone()
    wrong[1, 0] = torch.tensor([1.0, 0, 0, 0, 0])
    masked = integral(HybridSchedule(SMALL, 0.0), x, wrong, z)
    for p_uniform in (1e-2, 1e-4, 1e-6):
        hybrid = integral(HybridSchedule(SMALL, p_uniform), x, wrong, z)
        assert float(hybrid - masked) > 10
