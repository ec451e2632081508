"""The posterior corrector against exact posteriors, by enumeration and on texts of 64 tokens."""

import pytest
import torch
from support.sampling_worlds import (
    VOCAB,
    chi_square_p,
    counts,
    exact,
    index_of,
    random_denoiser,
    tabulated,
    world_of,
)

from gidd.common.config.registry import find_component
from gidd.diffusion.error_rate import time_at_error_rate
from gidd.diffusion.schedules import HybridSchedule, UniformSchedule
from gidd.errors import ConfigError
from gidd.sampling import (
    FunctionNetwork,
    PosteriorCorrection,
    PosteriorPass,
    Request,
    Session,
    WindowReader,
    WindowTokens,
    ban,
    corrector_plan,
    posterior_sampling_plan,
    run_sync,
)
from gidd.sampling.correctors.posterior import is_replaced, likelihood_of, token_posterior
from gidd.sources import MarkovSource, total_variation
from gidd.vocab import Vocab

HYBRID, UNIFORM = HybridSchedule(VOCAB, 0.2), UniformSchedule(Vocab(3, mask_id=None))
SIZE, LENGTH = 50, 64
SOURCE = MarkovSource.random(SIZE, 0.05)


def free(tokens) -> tuple[bool, ...]:
    return (False,) * len(tokens)


def corrected(session, texts, t, processors=(), **options):
    """One call of the corrector on each text."""
    plan = corrector_plan(PosteriorCorrection(**options), 1, t)
    requests = [
        Request(tokens=tuple(text), plan=plan, protected=free(text), processors=processors)
        for text in texts
    ]
    return session.sample(requests)


@pytest.mark.parametrize("schedule", [HYBRID, UNIFORM])
@pytest.mark.parametrize("t", [0.003, 0.2, 0.9])
def test_the_posterior_of_every_token_by_enumeration(schedule, t):
    """All noisy sequences of three tokens, masks included."""
    world = world_of(schedule)
    z, times = world.noisy, world.times(t)
    likelihood = likelihood_of(schedule, times, z)
    every = torch.arange(z.numel())
    x_theta = world.leave_one_out(z, times).flatten(0, 1)
    found = token_posterior(x_theta, z.flatten(), *likelihood.at(z, every)).unflatten(0, z.shape)
    torch.testing.assert_close(found, world.posterior(z, times), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(z.shape).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("schedule", [HYBRID, UNIFORM])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_the_error_is_the_least_possible_one(schedule, rate):
    """The expected number of wrong tokens, over all clean and all noisy sequences, to 1e-12."""
    world = world_of(schedule)
    t = float(time_at_error_rate(schedule, rate))
    session = Session(tabulated(world), schedule, batch_size=len(world.noisy))
    new = torch.tensor([sample.tokens for sample in corrected(session, world.noisy.tolist(), t)])
    joint = world.clean_distribution[:, None] * world.noising(t)
    wrong = (world.clean[:, None, :] != new).double().sum(-1)
    visible = (world.noisy != VOCAB.mask_id).all(-1)
    for chosen in (torch.ones_like(visible), visible):
        # of all rules: at each position the token with the largest joint probability
        mass = torch.stack([joint.T @ (world.clean == v).double() for v in range(3)])
        least = (joint.sum(0)[:, None] - mass.amax(0))[chosen].sum()
        found = (joint * wrong)[:, chosen].sum()
        torch.testing.assert_close(found, least, rtol=0, atol=1e-12)
    before = (world.clean[:, None, :] != world.noisy).double().sum(-1)
    assert (joint * wrong)[:, visible].sum() < (joint * before)[:, visible].sum()


def noisy_texts(rates):
    """400 texts and their noisy versions, with the random numbers of the published figures."""
    generator = torch.Generator().manual_seed(0)
    x = SOURCE.sample(1, torch.arange(400), LENGTH)
    for rate in rates:
        is_wrong = torch.rand(x.shape, generator=generator) < rate
        other = (x + torch.randint(1, SIZE, x.shape, generator=generator)) % SIZE
        yield rate, x, torch.where(is_wrong, other, x)


def rates_after(x, z, new) -> tuple[float, float]:
    """Wrong tokens after correction, and right ones that were spoiled."""
    return float((new != x).double().mean()), float((new != z)[z == x].double().mean())


MATCHED = {
    # wrong before: wrong after, and right ones spoiled, by the posterior at the matched time
    0.02: (0.0050, 0.0004),
    0.05: (0.0125, 0.0010),
    0.1: (0.0297, 0.0037),
    0.2: (0.0740, 0.0098),
}
UNMATCHED = {
    # the same with x_theta at t = 1e-4 and the posterior odds of the right rate
    "hybrid": ((0.0050, 0.0006), (0.0142, 0.0035), (0.0352, 0.0117), (0.0973, 0.0416)),
    "uniform": ((0.0073, 0.0030), (0.0217, 0.0113), (0.0508, 0.0282), (0.1344, 0.0832)),
}
SCHEDULES = {
    "hybrid": HybridSchedule(Vocab(SIZE + 1, mask_id=SIZE), 0.2),
    "uniform": UniformSchedule(Vocab(SIZE, mask_id=None)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid", "uniform"])
def test_the_table_of_correction_by_matched_and_unmatched_times(name):
    """Exact denoiser, texts of 64 tokens from a Markov source of 50."""
    schedule = SCHEDULES[name]
    session = Session(exact(SOURCE, schedule), schedule, batch_size=400)
    for (rate, x, z), expected in zip(noisy_texts(MATCHED), UNMATCHED[name], strict=True):
        unmatched = SOURCE.leave_one_out(schedule, torch.full((400,), 1e-4).double(), z)
        top, token = unmatched.max(-1)
        odds = (1 - rate) * schedule.vocab.size / rate
        own = unmatched.gather(-1, z[..., None]).squeeze(-1)
        by_odds = torch.where(top >= odds * own, token, z)
        assert rates_after(x, z, by_odds) == pytest.approx(expected, abs=5.1e-5)
        samples = corrected(session, z.tolist(), float(time_at_error_rate(schedule, rate)))
        new = torch.tensor([sample.tokens for sample in samples])
        assert rates_after(x, z, new) == pytest.approx(MATCHED[rate], abs=5.1e-5)
        assert all(sample.forward_passes == 1 for sample in samples)


def test_the_error_of_long_texts_is_the_expected_one():
    """What the posterior says about its own errors is true, within three standard errors."""
    schedule = SCHEDULES["uniform"]
    for rate, x, z in noisy_texts((0.02, 0.1)):
        t = time_at_error_rate(schedule, rate).expand(400)
        likelihood = likelihood_of(schedule, t, z)
        x_theta = SOURCE.leave_one_out(schedule, t, z).flatten(0, 1)
        every = torch.arange(z.numel())
        p = token_posterior(x_theta, z.flatten(), *likelihood.at(z, every)).unflatten(0, z.shape)
        best, new = p.max(-1)
        excess = ((new != x).double() - (1 - best)).mean(-1)  # of each text, 0 on average
        assert abs(float(excess.mean())) < 3 * float(excess.std()) / 400**0.5


def test_a_rate_below_the_smallest_time():
    """The fraction of wrong tokens may be given apart from the time of the network."""
    p = torch.tensor([0.6, 0.3, 0.09, 0.0099, 0.0001], dtype=torch.float64)
    size, rate = len(p), 0.001
    session = Session(
        FunctionNetwork(lambda z, t: p.expand(*z.shape, -1)),
        UniformSchedule(Vocab(size, mask_id=None)),
    )
    (sample,) = corrected(session, [range(size)], 0.1, error_rate=rate)
    (clean,) = corrected(session, [range(size)], 0.1, error_rate=0.0)
    # P(original = v, found = z), enumerated
    joint = p[:, None] * torch.full((size, size), rate / (size - 1)).double()
    joint[range(size), range(size)] = p * (1 - rate)
    assert sample.tokens == tuple(joint.argmax(0).tolist()) == (0, 1, 2, 3, 0)
    (edit,) = sample.edits
    posterior = joint[0, 4] / joint[:, 4].sum()
    assert (edit.position, edit.new) == (4, 0)
    assert edit.probability == pytest.approx(float(posterior))
    assert clean.tokens == tuple(range(size))


def test_a_channel_replaces_the_noise():
    """Tokens 0 and 1 are mistaken for one another, 2 for nothing else."""
    p = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
    channel = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).double()
    rate = 0.3
    session = Session(FunctionNetwork(lambda z, t: p.expand(*z.shape, -1)), UNIFORM)
    read = PosteriorPass(WindowReader(session), channel)
    text = WindowTokens((0, 1, 2), (True,) * 3)
    (found,) = run_sync(read([text], rate))
    joint = p[:, None] * (channel * rate + torch.eye(3) * (1 - rate))
    posterior = joint / joint.sum(0)
    torch.testing.assert_close(found.current, posterior.diag())
    assert found.replaced().tolist() == [False, True, False] and found.tokens[1].tolist() == [0]
    assert float(found.probabilities[1]) == pytest.approx(float(posterior[0, 1]))
    times = torch.tensor([0.3]).double()
    masked = torch.tensor([[3, 0]])
    table = torch.nn.functional.pad(channel, (0, 1, 0, 1))
    likelihood = likelihood_of(HYBRID, times, masked, channel=table)
    keep, noise = likelihood.at(masked, torch.arange(2))
    x_theta = torch.nn.functional.pad(p, (0, 1)).expand(2, -1)
    found = token_posterior(x_theta, masked[0], keep, noise)
    torch.testing.assert_close(found[0], x_theta[0])  # a mask says nothing about its token
    torch.testing.assert_close(found.sum(-1), torch.ones(2).double())


def test_a_distribution_of_wrong_tokens_is_a_channel_of_equal_rows():
    p = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
    frequencies = torch.tensor([0.6, 0.3, 0.1]).double()
    session = Session(FunctionNetwork(lambda z, t: p.expand(*z.shape, -1)), UNIFORM)
    text = WindowTokens((0, 1, 2), (True,) * 3)
    (short,), (table,) = (
        run_sync(PosteriorPass(WindowReader(session), channel)([text], 0.3))
        for channel in (frequencies, frequencies.expand(3, 3))
    )
    torch.testing.assert_close(short.current, table.current)
    torch.testing.assert_close(short.probabilities, table.probabilities)
    joint = p[:, None] * (frequencies * 0.3 + torch.eye(3) * 0.7)
    torch.testing.assert_close(short.current, joint.diag() / joint.sum(0))


def test_decisions():
    found = torch.tensor([0.5, 0.4, 0.3, 0.1])
    other = torch.tensor([0.5, 0.5, 0.6, 0.9])
    assert is_replaced(found, other).tolist() == [False, True, True, True]
    assert is_replaced(found, other, 0.6).tolist() == [False, False, True, True]
    assert is_replaced(found, other, 0.95).tolist() == [False] * 4
    # a low limit never replaces a token by a less likely one
    assert not is_replaced(torch.tensor(0.7), torch.tensor(0.3), 0.2)


def test_impossible_tokens_are_kept_and_masks_filled():
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    session = Session(FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1)), HYBRID)
    (sample,) = corrected(session, [(0, 1, 2, 3)], 0.0)
    assert sample.tokens == (0, 1, 2, 1)  # without noise a found token is right
    (sample,) = corrected(session, [(0, 1, 2, 3)], 0.1)
    assert sample.tokens == (1, 1, 1, 1)


WIDE = Vocab(33, mask_id=32)
NETWORK, SCHEDULE = random_denoiser(WIDE, gain=0.0), HybridSchedule(WIDE, 0.2)
RANDOM_TEXTS = torch.randint(32, (9, 12), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_text_is_corrected_alike_in_any_company(batch_size):
    session = Session(NETWORK, SCHEDULE, batch_size=batch_size)
    together = corrected(session, RANDOM_TEXTS, 0.6)
    for text, sample in zip(RANDOM_TEXTS, together, strict=True):
        assert corrected(session, [text], 0.6) == [sample]  # the edits with their probabilities too
    assert sum(len(sample.edits) for sample in together) > 9


def test_protected_positions_and_banned_tokens():
    session = Session(NETWORK, SCHEDULE)
    plain = corrected(session, RANDOM_TEXTS, 0.6)
    written = {edit.new for sample in plain for edit in sample.edits}
    banned = set(sorted(written)[::2])
    for sample in corrected(session, RANDOM_TEXTS, 0.6, processors=(ban(WIDE, banned),)):
        assert not {edit.new for edit in sample.edits} & banned
    plan = corrector_plan(PosteriorCorrection(), 1, 0.6)
    for text, free_sample in zip(RANDOM_TEXTS, plain, strict=True):
        protected = tuple(i % 2 == 0 for i in range(12))
        (sample,) = session.sample([Request(tokens=tuple(text), plan=plan, protected=protected)])
        expected = [edit for edit in free_sample.edits if edit.position % 2]
        assert [e[:-1] for e in sample.edits] == [e[:-1] for e in expected]


def test_it_is_a_part_and_checks_its_options():
    assert find_component("corrector", "posterior").make is PosteriorCorrection
    session = Session(NETWORK, SCHEDULE)
    for options, message in [
        ({"error_rate": 1.0}, "error_rate .*got 1.0"),
        ({"error_rate": -0.1}, "error_rate .*got -0.1"),
        ({"min_confidence": 1.5}, "min_confidence .*got 1.5"),
    ]:
        with pytest.raises(ConfigError, match=message):
            corrected(session, RANDOM_TEXTS, 0.1, **options)


@pytest.mark.parametrize("schedule", [HYBRID, UNIFORM])
def test_the_reverse_chain_samples_the_joint_posterior(schedule):
    """All clean sequences, given each visible noisy one; the error falls with the steps."""
    world = world_of(schedule)
    t = float(time_at_error_rate(schedule, 0.2))
    joint = world.clean_distribution[:, None] * world.noising(t)
    posterior = (joint / joint.sum(0)).T
    visible = [i for i, z in enumerate(world.noisy.tolist()) if VOCAB.mask_id not in z]
    distances = []
    for num_steps in (4, 16, 64):
        chain = torch.eye(len(world.noisy)).double()
        for _, later, earlier in posterior_sampling_plan(t, num_steps).steps:
            chain = chain @ world.reverse_kernel(world.leave_one_out, earlier, later)
        clean = chain[:, index_of(world, world.clean)]
        distances.append(max(total_variation(clean[i], posterior[i]) for i in visible))
    assert distances[0] > 2 * distances[1] > 4 * distances[2]
    assert distances[-1] < 0.02


@pytest.mark.slow
def test_sampled_posteriors_follow_the_chain():
    world = world_of(HYBRID)
    given, num = (0, 2, 1), 4000
    plan = posterior_sampling_plan(float(time_at_error_rate(HYBRID, 0.2)), 8)
    session = Session(tabulated(world), HYBRID, batch_size=num)
    requests = [
        Request(tokens=given, plan=plan, protected=(False,) * 3, sample_index=i) for i in range(num)
    ]
    samples = torch.tensor([sample.tokens for sample in session.sample(requests)])
    chain = torch.eye(len(world.noisy)).double()[index_of(world, torch.tensor([given]))]
    for _, t, s in plan.steps:
        chain = chain @ world.reverse_kernel(world.leave_one_out, s, t)
    assert chi_square_p(counts(world, samples), chain[0]) > 1e-3
