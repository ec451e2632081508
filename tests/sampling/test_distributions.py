"""The distributions of steps and correctors, on sources whose exact denoiser is known."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from support.ancestral_reference import ancestral_reference
from support.cases import few
from support.sampling_worlds import (
    VOCAB,
    blank_state,
    chi_square_p,
    counts,
    exact,
    sampled,
    tabulated,
    world_of,
)
from support.session_runs import run_state
from support.strategies import as_times, random_x_theta, schedule_from_unit_cube, schedules, unit

from gidd.common.config.components import component
from gidd.diffusion.categorical import at, at_token
from gidd.diffusion.process import marginal, marginal_at, posterior, transition
from gidd.diffusion.schedules import (
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.diffusion.times import even_times
from gidd.sampling import (
    FunctionNetwork,
    Gibbs,
    Plan,
    Session,
    corrector_plan,
    sampling_plan,
)
from gidd.sampling.correctors import INVARIANT_CORRECTORS
from gidd.sampling.steps import (
    MASK_FILLING_STEPS,
    SAMPLING_STEPS,
    Confidence,
    Greedy,
    Threshold,
    ancestral,
)
from gidd.sampling.steps.ancestral import redraw_probability
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld, total_variation
from gidd.vocab import Vocab

SCHEDULES = {
    "masked": MaskedSchedule(VOCAB),
    "hybrid": HybridSchedule(VOCAB, 0.2),
    "uniform": UniformSchedule(Vocab(3)),
    "mixture": schedule_from_unit_cube(MixtureSchedule, VOCAB, (0.2, 0.5, 0.5)),
}


@given(schedules(), unit, unit, st.integers(0, 99))
def test_factorised_posterior_is_the_dense_one(schedule, a, b, seed):
    """(1 - r) 1[z_s = z_t] + r q_s(. | x_theta) agrees with Eq. 16 to 1e-12."""
    low, high = sorted((0.999 * a, b))
    s, t = as_times([low]), as_times([high])
    size = schedule.vocab.size
    z = torch.arange(size)[None]
    x_theta = random_x_theta(schedule.vocab, 1, size, seed=seed)
    q_t = marginal_at(schedule, t, z, at(x_theta, z))
    arrived = at_token(transition(schedule, s, t).beta_pi, z)
    r = redraw_probability(arrived, q_t)[..., None]
    factorised = (1 - r) * F.one_hot(z, size) + r * marginal(schedule, s, x_theta)
    possible = (q_t > 1e-9)[..., None]
    dense = posterior(schedule, s, t, z, x_theta)
    torch.testing.assert_close(factorised * possible, dense * possible, rtol=0, atol=1e-12)


MANY = pytest.mark.long
"""With as many samples as figures need: they take a minute a step through a session."""
STEPS_OF_CHAINS = [ancestral, pytest.param(ancestral_reference, marks=MANY)]


@pytest.mark.slow
@pytest.mark.parametrize("num", [100_000, pytest.param(1_000_000, marks=MANY)])
@pytest.mark.parametrize("step", STEPS_OF_CHAINS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_one_step_draws_from_the_posterior(name, step, num):
    """Draws of one step from t = 0.6 to s = 0.35 against Eq. 16, for every z_t."""
    schedule = SCHEDULES[name]
    size = schedule.vocab.size
    x_theta = random_x_theta(schedule.vocab, 1, size)
    z = torch.arange(size).repeat(num // 2000 // size + 1)[: num // 2000].expand(2000, -1)
    state = blank_state(schedule, *z.shape, seed=3)
    state.tokens[:] = z
    network = FunctionNetwork(lambda z, t: x_theta[0, z])
    plan = sampling_plan(torch.tensor([0.6, 0.35]), step)
    run_state(Session(network, schedule, batch_size=2000), state, plan)
    s, t = as_times([0.35]), as_times([0.6])
    expected = posterior(schedule, s, t, torch.arange(size)[None], x_theta)[0]
    for v in range(size):
        if expected[v].sum() > 0:
            observed = torch.bincount(state.tokens[z == v], minlength=size).double()
            assert chi_square_p(observed, expected[v]) > 1e-3, (v, observed, expected[v])
        else:
            assert (state.tokens[z == v] == v).all()


@pytest.mark.slow
@pytest.mark.parametrize("num", [4_000, pytest.param(20_000, marks=MANY)])
@pytest.mark.parametrize("step", STEPS_OF_CHAINS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_reverse_chain_has_the_enumerated_distribution(name, step, num):
    """Eight steps from the prior: samples against the exact distribution of the chain."""
    world = world_of(SCHEDULES[name])
    samples = sampled(world, sampling_plan(even_times(8), step), num).tokens
    expected = world.reverse_distribution(world.leave_one_out, even_times(8))
    assert chi_square_p(counts(world, samples), expected) > 1e-3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step"),
    [
        (name, step)
        for step in SAMPLING_STEPS
        for name in (["masked"] if step in (*MASK_FILLING_STEPS, "remdm") else ["masked", "hybrid"])
    ],
)
def test_more_steps_come_closer_to_the_data(name, step):
    """Total variation to the data at 1, 4 and 32 steps, 20,000 samples: noise floor 0.007.

    That the chain of each step is the enumerated one is tested with fewer samples above.
    """
    fills_masks = step in MASK_FILLING_STEPS
    world = world_of(SCHEDULES[name])
    step = Threshold(fill=1.0) if step == "threshold" else component("step", step).build()
    errors = []
    for num_steps in (1, 4, 32):
        observed = counts(
            world, sampled(world, sampling_plan(even_times(num_steps), step), 20_000).tokens
        )
        errors.append(total_variation(observed / observed.sum(), world.data_distribution))
    # one token per step is exact already if masks are filled by confidence
    assert errors[0] > 3 * errors[1] if fills_masks else errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03, errors


@pytest.mark.slow
@pytest.mark.parametrize("step", [Confidence(), Threshold(fill=1.0)])
def test_filling_by_confidence_is_exact_one_token_at_a_time(step):
    """The choice of position depends on visible tokens, not on tokens still to be drawn."""
    world = world_of(MaskedSchedule(VOCAB))
    samples = sampled(world, sampling_plan(even_times(3), step), 8_000).tokens
    assert chi_square_p(counts(world, samples), world.data_distribution) > 1e-3


@pytest.mark.long
def test_a_lower_threshold_saves_calls_and_adds_error():
    """Masks filled together are drawn as if independent: less error at higher confidence."""
    world = world_of(MaskedSchedule(VOCAB))
    errors, forward_passes = [], []
    for fill in (0.5, 0.7, 0.9):
        state = blank_state(world.schedule, 20_000, world.length)
        session = Session(tabulated(world), world.schedule, batch_size=20_000)
        plan = sampling_plan(even_times(3), Threshold(fill=fill))
        samples = run_state(session, state, plan)
        observed = counts(world, state.tokens)
        errors.append(total_variation(observed / observed.sum(), world.data_distribution))
        forward_passes.append(sum(sample.forward_passes for sample in samples) / len(samples))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert forward_passes[0] < forward_passes[1] < forward_passes[2]


def test_threshold_replaces_only_tokens_that_noise_can_produce():
    """Under mask noise a visible token is right, even if another token has probability 1."""
    schedule = MaskedSchedule(VOCAB)
    certain = F.one_hot(torch.tensor(1), VOCAB.size).double()
    network = FunctionNetwork(lambda z, t: certain.expand(*z.shape, -1))
    state = blank_state(schedule, 1, 3)
    state.tokens[:] = torch.tensor([0, VOCAB.mask_id, 2])
    run_state(Session(network, schedule), state, sampling_plan(even_times(2), Threshold()))
    assert state.tokens.tolist() == [[0, 1, 2]]
    hybrid = SCHEDULES["hybrid"]
    state = blank_state(hybrid, 1, 3)
    state.tokens[:] = torch.tensor([0, VOCAB.mask_id, 2])
    run_state(Session(network, hybrid), state, sampling_plan(even_times(2), Threshold()))
    assert state.tokens.tolist() == [[1, 1, 1]]


@pytest.mark.slow
def test_greedy_finds_a_likely_sequence():
    """It is deterministic, and its sequence is more likely than data is on average."""
    source = MarkovSource.random(8, 0.3, rng=0)
    schedule = MaskedSchedule(Vocab(9, mask_id=8))
    state = blank_state(schedule, 16, 12)
    run_state(
        Session(exact(source, schedule), schedule), state, sampling_plan(even_times(12), Greedy())
    )
    assert (state.tokens == state.tokens[0]).all()
    assert float(source.log_prob(state.tokens)[0]) > -source.entropy(12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("time", "name", "corrector"), few([0.4, 0.0], SCHEDULES, INVARIANT_CORRECTORS, every=3)
)
def test_gibbs_correctors_leave_the_noisy_distribution_invariant(corrector, name, time):
    """Samples of Z_t, then three calls: the distribution is still that of Z_t, at every t.

    At t = 0 the distance is 2: positions two apart are independent given those between them. For
    t > 0 they are not, so the distance is 3, which redraws one position of three.
    """
    world = world_of(SCHEDULES[name])
    expected = world.noisy_distribution(time)
    num = 8_000
    generator = torch.Generator().manual_seed(5)
    state = blank_state(world.schedule, num, 3)
    start = torch.multinomial(expected, num, replacement=True, generator=generator)
    state.tokens[:] = world.noisy[start]
    step = component("corrector", corrector, distance=3 if time else 2).build()
    session = Session(tabulated(world), world.schedule, batch_size=num)
    run_state(session, state, corrector_plan(step, 3, time))
    assert (state.tokens != world.noisy[start]).any(-1).double().mean() > 0.1
    assert chi_square_p(counts(world, state.tokens), expected) > 1e-3


@pytest.mark.slow
def test_redrawing_neighbours_together_is_biased():
    """Why there is a minimum distance: redrawing all positions at once is not invariant."""
    world = world_of(SCHEDULES["hybrid"])
    generator = torch.Generator().manual_seed(5)
    state = blank_state(world.schedule, 8_000, 3)
    start = torch.multinomial(world.data_distribution, 8_000, replacement=True, generator=generator)
    state.tokens[:] = world.noisy[start]
    session = Session(tabulated(world), world.schedule, batch_size=8_000)
    run_state(session, state, corrector_plan(Gibbs(distance=1), 1))
    assert chi_square_p(counts(world, state.tokens), world.data_distribution) < 1e-12


# p_u -> total variation to the data at 8 and 32 forward passes: ancestral, half the calls Gibbs
# (one random position after each step), the last quarter of the calls Gibbs at t = 0
TABLE = {
    0.1: ((0.0355, 0.0193, 0.0092), (0.0108, 0.0044, 0.0010)),
    0.2: ((0.0547, 0.0304, 0.0121), (0.0206, 0.0099, 0.0011)),
    0.5: ((0.1259, 0.0616, 0.0239), (0.0707, 0.0359, 0.0016)),
}


def planned_distribution(world: SmallWorld, plan: Plan) -> torch.Tensor:
    """The exact distribution after a plan of ancestral steps and one-position redraws."""
    p = world.noisy_distribution(1.0)
    for step, t, s in plan.steps:
        if step is ancestral:
            p = p @ world.reverse_kernel(world.leave_one_out, s, t)
        else:
            p = sum(p @ world.gibbs_kernel(world.leave_one_out, t, i) for i in range(3)) / 3
    return p


def plans_of(forward_passes: int) -> list[Plan]:
    """Three plans with the same number of forward passes."""
    one = Gibbs(num_positions=1)
    return [
        sampling_plan(even_times(forward_passes)),
        sampling_plan(even_times(forward_passes // 2), correctors=[one]),
        sampling_plan(even_times(forward_passes * 3 // 4))
        + corrector_plan(one, forward_passes // 4),
    ]


@pytest.mark.parametrize("p_uniform", TABLE)
@pytest.mark.parametrize("forward_passes", [8, 32])
def test_gibbs_beats_ancestral_at_equal_calls(p_uniform, forward_passes):
    """The plans, enumerated without sampling, give the recorded figures."""
    world = world_of(HybridSchedule(VOCAB, p_uniform))
    expected = TABLE[p_uniform][forward_passes == 32]
    for plan, error in zip(plans_of(forward_passes), expected, strict=True):
        assert len(plan) == forward_passes
        found = total_variation(planned_distribution(world, plan), world.data_distribution)
        assert found == pytest.approx(error, abs=6e-5)


@pytest.mark.slow
@pytest.mark.parametrize("which", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_sampler_follows_the_plan(which):
    """Eight calls, 8,000 samples against the exact distribution of that plan."""
    world = world_of(HybridSchedule(VOCAB, 0.2))
    plan = plans_of(8)[which]
    samples = sampled(world, plan, 8_000).tokens
    assert chi_square_p(counts(world, samples), planned_distribution(world, plan)) > 1e-3


@pytest.mark.long
def test_a_final_gibbs_phase_is_closer_to_the_data_on_long_sequences():
    """V = 50, L = 64, 1,000 samples, 16 calls: impossible bigrams and true log-likelihood.

    `benchmarks/sampling_distributions.py` makes the table with 10^5 samples and 16 to 64 calls.
    """
    source = MarkovSource.random(50, 0.3, rng=0)
    schedule = HybridSchedule(Vocab(51, mask_id=50), 0.2)
    session = Session(exact(source, schedule), schedule, batch_size=1000)
    plans = [
        sampling_plan(even_times(16)),
        sampling_plan(even_times(12)) + corrector_plan(Gibbs(), 4),
    ]
    bigrams = source.transition
    errors, likelihoods = [], []
    for plan in plans:
        state = blank_state(schedule, 1000, 64)
        run_state(session, state, plan)
        pairs = state.tokens.unfold(1, 2, 1).reshape(-1, 2)
        impossible = bigrams[pairs[:, 0], pairs[:, 1]] < 1e-6
        errors.append(float(impossible.double().mean()))
        likelihoods.append(float(source.log_prob(state.tokens).clamp_min(-700).mean()))
    assert errors[1] < 0.5 * errors[0], errors
    truth = -source.entropy(64)
    assert abs(likelihoods[1] - truth) < 0.5 * abs(likelihoods[0] - truth), (likelihoods, truth)


@pytest.mark.slow
def test_given_tokens_condition_masked_diffusion_exactly():
    """The blank between prefix and suffix has the data's conditional distribution."""
    world = world_of(MaskedSchedule(VOCAB))
    state = blank_state(world.schedule, 8_000, 3)
    state.tokens[:, 0], state.tokens[:, 2] = 1, 2
    state.protected[:, [0, 2]] = True
    session = Session(tabulated(world), world.schedule, batch_size=8_000)
    run_state(session, state, sampling_plan(even_times(4)))
    given = (world.noisy[:, 0] == 1) & (world.noisy[:, 2] == 2)
    expected = world.data_distribution * given
    assert chi_square_p(counts(world, state.tokens), expected / expected.sum()) > 1e-3


@pytest.mark.slow
def test_given_tokens_condition_gibbs_exactly():
    """Gibbs at t = 0 leaves the data distribution given protected tokens invariant."""
    world = world_of(SCHEDULES["hybrid"])
    expected = world.data_distribution * (world.noisy[:, 0] == 1)
    state = blank_state(world.schedule, 8_000, 3)
    generator = torch.Generator().manual_seed(5)
    start = torch.multinomial(expected, 8_000, replacement=True, generator=generator)
    state.tokens[:] = world.noisy[start]
    state.protected[:, 0] = True
    session = Session(tabulated(world), world.schedule, batch_size=8_000)
    run_state(session, state, corrector_plan(Gibbs(), 4))
    assert (state.tokens != world.noisy[start]).any(-1).double().mean() > 0.1
    assert chi_square_p(counts(world, state.tokens), expected / expected.sum()) > 1e-3
