"""The one likelihood estimator, on sources whose likelihood is known exactly."""

import math

import pytest
import torch
from scipy import stats
from support.cases import few
from support.exact_denoiser import ExactDenoiser, markov_world

from gidd.diffusion.elbo import elbo_terms, prior_kl, reconstruction
from gidd.diffusion.likelihood import NelboEstimator, ScoredText, estimate_nelbo
from gidd.diffusion.likelihood.scoring import ScoringBatch, pair_batches
from gidd.diffusion.process import marginal_at
from gidd.diffusion.times import GRIDS, paper_nodes
from gidd.errors import ConfigError

LENGTH = 12
NOISE = (0.0, 0.1, 0.2, 0.5)


def estimator(p_uniform: float, given=None, **settings) -> NelboEstimator:
    source, schedule = markov_world(p_uniform, num_tokens=6)
    settings = {"tokens_per_batch": 1 << 16} | settings
    return NelboEstimator(ExactDenoiser(source, schedule, given), schedule, **settings)


def texts_of(source, number: int, length: int = LENGTH) -> list[ScoredText]:
    tokens = source.sample(0, torch.arange(number), length)
    return [ScoredText(row, index) for index, row in enumerate(tokens)]


@pytest.mark.slow
@pytest.mark.parametrize(("p_uniform", "grid"), few(NOISE, ["sine", "stratified"], every=3))
def test_estimates_are_within_three_standard_errors_of_the_truth(grid, p_uniform):
    """With the exact denoiser the NELBO of a text is not its -log p; that of the source is."""
    nelbo = estimator(p_uniform, grid=grid)
    source = nelbo.model.source
    texts = texts_of(source, 400)
    found = estimate_nelbo(nelbo, texts, repeats=4)
    truth = -source.log_prob(torch.stack([text.tokens for text in texts]))
    # the gap of each text has mean 0 over the source: its spread is part of the error
    gap = found.nelbo - truth
    error = float(gap.std() * math.sqrt(len(gap)))
    assert abs(float(gap.sum())) < 3 * error
    assert found.total_error <= 1.1 * error
    assert found.forward_passes == nelbo.model.forward_passes == 400 * (1 + 4 * 13)


@pytest.mark.slow
@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_standard_errors_are_honest(p_uniform):
    """95% intervals of 500 repetitions contain the true NELBO in 92% to 98% of the cases."""
    nelbo = estimator(p_uniform)
    x = nelbo.model.source.sample(3, torch.arange(1), LENGTH)[0]
    found = estimate_nelbo(nelbo, [ScoredText(x, index) for index in range(500)])
    truth = float(found.nelbo.mean())  # its error is 4% of that of a repetition
    half_width = stats.t.ppf(0.975, len(found.draws) - 1) * found.standard_error
    covered = float(((found.nelbo - truth).abs() < half_width).double().mean())
    assert 0.92 <= covered <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("p_uniform", [0.0, 0.1, 0.2])
def test_half_the_forward_passes_of_the_paper_have_a_smaller_error(p_uniform):
    """The error of the paper's grid is computed exactly: its rare large values escape sampling."""
    length, nodes = 3, paper_nodes(128)
    ours = estimator(p_uniform, nodes=62)  # and the early end; the prior is computed once
    source, schedule = ours.model.source, ours.schedule
    x = source.sample(1, torch.arange(1), length)
    size = schedule.vocab.size
    z = torch.cartesian_prod(*[torch.arange(size)] * length)
    mean, variance = [], []
    for node in nodes.t:
        t = node.expand(len(z))
        probability = marginal_at(schedule, t, z, (z == x).double()).prod(-1)
        possible = probability > 0
        x_theta = source.leave_one_out(schedule, t[possible], z[possible])
        everywhere = x.expand(int(possible.sum()), -1)
        terms = elbo_terms(schedule, t[possible], everywhere, z[possible], x_theta)
        value, p = (terms.weight * terms.divergence).sum(-1), probability[possible]
        mean.append(p @ value)
        variance.append(p @ value.square() - mean[-1].square())
    found = estimate_nelbo(ours, [ScoredText(x[0], index) for index in range(600)], repeats=2)
    draws = (found.draws.sum(-1) + found.prior).flatten()
    bias = nodes.weight @ torch.stack(mean) - draws.mean()
    paper = bias.square() + nodes.weight.square() @ torch.stack(variance)
    assert found.forward_passes == 600 * (2 * 63 + 1)
    assert float(draws.var()) < float(paper)


@pytest.mark.slow
@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_conditional_likelihoods_add_up(p_uniform):
    """-log p(a, b) = -log p(a) - log p(b | a)."""
    half = LENGTH // 2
    given = torch.arange(LENGTH) < half
    together = estimator(p_uniform)
    source = together.model.source
    texts = texts_of(source, 300)
    first = [ScoredText(text.tokens[:half], text.index) for text in texts]
    second = [ScoredText(text.tokens, text.index, given) for text in texts]
    a_b = estimate_nelbo(together, texts, repeats=4)
    a = estimate_nelbo(estimator(p_uniform, seed=1), first, repeats=4)
    b = estimate_nelbo(estimator(p_uniform, given, seed=2), second, repeats=4)
    x = torch.stack([text.tokens for text in texts])
    truth = -source.log_prob(x)
    for found, exact in ((a_b, truth), (a, -source.log_prob(x[:, :half]))):
        gap = found.nelbo - exact
        assert abs(float(gap.mean())) < 3 * float(gap.std()) / math.sqrt(len(gap))
    gap = a.nelbo + b.nelbo - a_b.nelbo
    assert abs(float(gap.mean())) < 3 * float(gap.std()) / math.sqrt(len(gap))


def test_given_tokens_are_never_noised_and_not_scored():
    given = torch.zeros(LENGTH, dtype=torch.bool)
    given[[0, 3, 11]] = True
    nelbo = estimator(0.2, given)
    text = texts_of(nelbo.model.source, 1)[0]
    seen = []
    hidden = nelbo.model.hidden
    nelbo.model.hidden = lambda z, t: (seen.append(z), hidden(z, t))[1]
    found = estimate_nelbo(nelbo, [ScoredText(text.tokens, 0, given)])
    z = torch.cat(seen)
    assert (z[:, given] == text.tokens[given]).all()
    assert (z[:, ~given] != text.tokens[~given]).any()
    everything = ScoredText(text.tokens, 0, torch.ones(LENGTH, dtype=torch.bool))
    nothing = estimate_nelbo(estimator(0.2, everything.given), [everything])
    assert nothing.total == 0 == everything.num_scored
    assert found.total > 0


@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_the_ends_are_those_of_the_definition(p_uniform):
    """`elbo.reconstruction` and `elbo.prior_kl` on the noisy texts that the estimator draws."""
    nelbo = estimator(p_uniform)
    source, schedule = nelbo.model.source, nelbo.schedule
    texts = texts_of(source, 3)
    seen = []
    hidden = nelbo.model.hidden
    nelbo.model.hidden = lambda z, t: (seen.append((z, t)), hidden(z, t))[1]
    prior = nelbo.prior(texts)
    draw = nelbo.draw(texts, 0)
    x = torch.stack([text.tokens for text in texts])
    (z_one, one), _, (z, t) = seen
    assert (one == 1).all() and (t == t[0]).all() and float(t[0]) == pytest.approx(1e-4)
    x_theta = source.leave_one_out(schedule, t, z)
    expected = reconstruction(schedule, t, x, z, x_theta).sum(-1)
    torch.testing.assert_close(draw[:, 1], expected, rtol=1e-4, atol=1e-4)
    at_one = source.leave_one_out(schedule, one, z_one)
    expected = prior_kl(schedule, 1 - t, x, at_one).sum(-1)
    torch.testing.assert_close(prior, expected.double(), rtol=2e-3, atol=1e-6)


@pytest.mark.slow
def test_batches_and_order_do_not_change_estimates():
    nelbo = estimator(0.2, tokens_per_batch=1 << 16)
    short = texts_of(nelbo.model.source, 3, 5)
    texts = [*texts_of(nelbo.model.source, 4), *(ScoredText(s.tokens, s.index + 9) for s in short)]
    found = estimate_nelbo(nelbo, texts)
    again = estimate_nelbo(estimator(0.2, tokens_per_batch=1), texts[::-1])
    torch.testing.assert_close(again.nelbo.flip(0), found.nelbo, rtol=1e-6, atol=1e-6)
    alone = estimate_nelbo(estimator(0.2), texts[5:6])
    torch.testing.assert_close(alone.nelbo, found.nelbo[5:6], rtol=1e-6, atol=1e-6)


def test_padding_is_noised_and_not_scored():
    nelbo = estimator(0.2)
    text = texts_of(nelbo.model.source, 1)[0]
    valid = torch.arange(LENGTH) < 7
    seen = []
    hidden = nelbo.model.hidden
    nelbo.model.hidden = lambda z, t: (seen.append(z), hidden(z, t))[1]
    whole = estimate_nelbo(nelbo, [text])
    some = estimate_nelbo(nelbo, [ScoredText(text.tokens, 0, valid=valid)])
    others = estimate_nelbo(nelbo, [ScoredText(text.tokens, 0, valid=~valid)])
    assert (torch.cat(seen)[:, ~valid] != text.tokens[~valid]).any()
    assert some.total + others.total == pytest.approx(whole.total, rel=1e-5)


def test_strata_spread_the_times_of_all_texts():
    """One time per text: together they are evenly spaced, whatever batch a text is in."""
    nelbo = estimator(0.2, nodes=1, strata=32)
    texts = texts_of(nelbo.model.source, 32)
    times, _ = nelbo._times(texts, 0)
    y = (times.sqrt().asin().squeeze(-1) * 2 / math.pi).sqrt()
    assert float(y.sort().values.diff().max()) < 2.1 / 32
    torch.testing.assert_close(nelbo._times(texts[5:9], 0).t, times[5:9])


def test_equal_indices_share_times_and_noise():
    nelbo = estimator(0.2)
    x = nelbo.model.source.sample(0, torch.arange(1), LENGTH)[0]
    same = estimate_nelbo(nelbo, [ScoredText(x, 7), ScoredText(x, 7), ScoredText(x, 8)])
    assert same.nelbo[0] == same.nelbo[1] != same.nelbo[2]


class OneRank:
    """A rank whose sums are those of its own part; parts are added by the test."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, values):
        return list(values)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_work_and_add_up_to_the_same_number(size):
    """Each batch is computed by one rank; tests/evaluation runs real ranks."""
    settings = {"tokens_per_batch": 3 * LENGTH}
    whole = estimator(0.2, **settings)
    texts = texts_of(whole.model.source, 5)
    expected = whole.draw(texts, 1) + whole.prior(texts)[:, None]
    parts = [estimator(0.2, ranks=OneRank(rank, size), **settings) for rank in range(size)]
    found = sum(part.draw(texts, 1) + part.prior(texts)[:, None] for part in parts)
    # every rank runs the same number of batches: some are computed twice
    assert len({part.model.batches for part in parts}) == 1
    assert sum(part.model.forward_passes for part in parts) >= whole.model.forward_passes
    assert max(part.model.batches for part in parts) < 0.8 * whole.model.batches
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_budget_stops_when_the_error_is_small_enough():
    nelbo = estimator(0.2, nodes=4)
    texts = texts_of(nelbo.model.source, 20)
    loose = estimate_nelbo(nelbo, texts, repeats=2, max_se=0.05)
    tight = estimate_nelbo(nelbo, texts, repeats=2, max_se=0.02)
    tokens = 20 * LENGTH
    assert loose.total_error <= 0.05 * tokens and tight.total_error <= 0.02 * tokens
    assert loose.forward_passes < tight.forward_passes
    limited = estimate_nelbo(nelbo, texts, repeats=2, max_se=1e-9, max_forward_passes=500)
    assert 400 < limited.forward_passes <= 500


def test_a_budget_ends_if_predictions_are_nan(monkeypatch):
    nelbo = estimator(0.2, nodes=4)
    hidden = nelbo.model.hidden
    monkeypatch.setattr(nelbo.model, "hidden", lambda z, t: hidden(z, t) * math.nan)
    texts = texts_of(nelbo.model.source, 2)
    found = estimate_nelbo(nelbo, texts, repeats=2, max_se=0.1, max_forward_passes=1000)
    assert found.nelbo.isnan().all()
    assert len(found.draws) == 2


def test_progress_counts_every_forward_pass():
    nelbo = estimator(0.2, tokens_per_batch=2 * LENGTH)
    seen = []
    texts = texts_of(nelbo.model.source, 3)
    found = estimate_nelbo(
        nelbo, texts, on_forward_passes=lambda done, total: seen.append((done, total))
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (found.forward_passes, found.forward_passes) and {
        total for _, total in seen
    } == {found.forward_passes}


def test_the_grid_of_the_paper_has_no_ends():
    nelbo = estimator(0.1, grid="paper", nodes=128)
    found = estimate_nelbo(nelbo, texts_of(nelbo.model.source, 1), repeats=2)
    assert found.forward_passes == 256
    assert not found.prior.any() and not found.draws[..., 1].any()
    assert "biased" in GRIDS["paper"].description


@pytest.mark.parametrize("wrong", [{"grid": "even"}, {"nodes": 0}, {"tokens_per_batch": 0}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        estimator(0.2, **wrong)


def test_one_repeat_has_no_standard_error():
    nelbo = estimator(0.2)
    with pytest.raises(ConfigError, match="repeats must be at least 2"):
        estimate_nelbo(nelbo, texts_of(nelbo.model.source, 1), repeats=1)


def test_rows_are_grouped_by_length():
    texts = [ScoredText(torch.zeros(n, dtype=torch.int64), n) for n in (5, 2, 5, 9)]
    batches = [
        ScoringBatch.load(texts, pairs, "cpu") for pairs in pair_batches(texts, range(2), 10)
    ]
    assert [tuple(rows.x.shape) for rows in batches] == [(2, 2), (2, 5), (2, 5), (1, 9), (1, 9)]
    pairs = [
        pair
        for rows in batches
        for pair in zip(rows.text.tolist(), rows.node.tolist(), strict=True)
    ]
    assert sorted(pairs) == [(text, node) for text in range(4) for node in range(2)]
