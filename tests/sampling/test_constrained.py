"""Constraints: every sample is accepted, with the probabilities of the definition."""

import random
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from support.cases import few
from support.counting_network import CountingNetwork
from support.random_requests import FIXERS, is_defined, random_request
from support.sampling_worlds import chi_square_p, counts, random_denoiser, tabulated

from gidd.diffusion.process import noise_at, posterior, prior
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError
from gidd.sampling import (
    Automaton,
    Confidence,
    Constrained,
    Constraint,
    FunctionNetwork,
    Gibbs,
    Greedy,
    Guidance,
    Limits,
    NetworkPredict,
    Psi,
    RemaskSuspects,
    ReMDM,
    Renoise,
    Request,
    Session,
    State,
    Temperature,
    Threshold,
    ancestral,
    blanks,
    corrector_plan,
    one_of,
    sampling_plan,
    start,
)
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab

SMALL, VOCAB = Vocab(4, mask_id=3), Vocab(17, mask_id=16)
MODEL = random_denoiser(VOCAB, max_length=40)
NOISES = {
    "masked": MaskedSchedule(VOCAB),
    "hybrid": HybridSchedule(VOCAB, 0.3),
    "uniform": UniformSchedule(VOCAB),
}
STEPS = {
    "ancestral": ancestral,
    "confidence": Confidence(),
    "greedy": Greedy(),
    "threshold": Threshold(fill=0.3),
    "remdm": ReMDM(cap=0.5),
    "remask_suspects": RemaskSuspects(suspect=0.3),
    "psi": Psi(renoise=0.5),
    "renoise": Renoise(entropy_bound=2.0),
}
OPTIONS, OTHERS = ((1, 2, 3), (1, 5, 6), (7, 2, 6), (8, 9, 10)), ((4,), (11,))
TOKENS = (5, 6, None, None, None, 7, None, None)


def slot(start: int, options, size: int = VOCAB.size) -> Constraint:
    """A slot of blanks that becomes one of some sequences."""
    return Constraint(one_of(options, size), start, start + len(options[0]))


SLOTS = slot(2, OPTIONS), slot(7, OTHERS)


def requests_of(plan, num: int = 6, **fields) -> list[Request]:
    first = Request(tokens=TOKENS, plan=plan, constraints=SLOTS, **fields)
    return [replace(first, sample_index=index) for index in range(num)]


def assert_chosen(sample) -> None:
    assert sample.tokens[2:5] in OPTIONS and sample.tokens[7:] in OTHERS
    assert (*sample.tokens[:2], sample.tokens[5]) == (5, 6, 7)


CASES = [(n, step) for n in NOISES for step in STEPS if is_defined(STEPS[step], NOISES[n])]


@pytest.mark.parametrize("case", few(CASES, every=4), ids="-".join)
def test_every_sample_has_one_of_the_options(case):
    noise, step = case
    plan = sampling_plan(even_times(5), STEPS[step])
    session = Session(MODEL, NOISES[noise], batch_size=2)
    samples = session.sample(requests_of(plan))
    samples += session.sample(requests_of(plan, processors=(Temperature(0.0),)))
    samples += session.sample(requests_of(plan, guidance=Guidance(4.0, (16, 16, *TOKENS[2:]))))
    for sample in samples:
        assert_chosen(sample)
    if step == "ancestral":
        assert len({sample.tokens[2:5] for sample in samples}) > 1


def test_a_step_reads_the_slots_of_its_own_requests_only():
    """Requests of other steps share the pass: forward passes are those of each request alone."""
    session, rng = Session(MODEL, NOISES["hybrid"], batch_size=4), random.Random(7)
    steps = [step for step in STEPS.values() if is_defined(step, NOISES["hybrid"])]
    letter, requests = slot(2, ((1,), (5,), (9,))), list[Request]()
    for seed in range(20):
        step = rng.choice(steps)
        plan = sampling_plan(even_times(rng.randint(1, 8)), step)
        requests.append(Request(tokens=(5, 6, None), plan=plan, seed=seed, constraints=(letter,)))
    alone = [session.sample([request])[0] for request in requests]
    together = session.sample(requests)
    assert [(one.tokens, one.edits) for one in together] == [(o.tokens, o.edits) for o in alone]
    assert [one.forward_passes for one in together] == [one.forward_passes for one in alone]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "noise"), few(FIXERS, ["hybrid", "uniform"], every=3))
def test_correctors_keep_an_option(noise, name):
    session = Session(MODEL, NOISES[noise])
    for fixer in FIXERS[name]:
        time = 0.5 if name in ("posterior", "self_correction") else 0.0
        plan = sampling_plan(even_times(3), correctors=[Gibbs(distance=1)])
        for sample in session.sample(requests_of(plan + corrector_plan(fixer, 5, time))):
            assert_chosen(sample)


def replace_one(schedule, s, t, state, predict) -> State:
    """A corrector that replaces the first token of the slot alone."""
    is_first = torch.arange(state.tokens.shape[1]) == 2
    top = predict(state, t, state.free & is_first).top
    return state._replace(tokens=torch.where(is_first, top, state.tokens))


def test_a_corrector_that_replaces_one_token_keeps_an_option():
    plan = sampling_plan(even_times(2)) + corrector_plan(replace_one, 4, 0.9)
    for sample in Session(MODEL, NOISES["uniform"]).sample(requests_of(plan)):
        assert_chosen(sample)


@pytest.mark.parametrize("noise", NOISES)
def test_a_request_that_ends_early_has_an_option(noise):
    session, num_early = Session(MODEL, NOISES[noise]), 0
    for request in requests_of(sampling_plan(even_times(8))):
        (sample,) = session.sample([request], limits=Limits(forward_passes=3))
        num_early += not sample.is_complete
        assert_chosen(sample)
    assert num_early > 2


def frequencies(world: SmallWorld, request: Request, options, num: int = 1500) -> torch.Tensor:
    """How often each option of the first slot was sampled by the exact denoiser."""
    session = Session(tabulated(world), world.schedule, batch_size=num)
    samples = session.sample([replace(request, sample_index=k) for k in range(num)])
    place = slice(request.constraints[0].start, request.constraints[0].stop)
    found = [options.index(sample.tokens[place]) for sample in samples]
    return torch.bincount(torch.tensor(found), minlength=len(options)).double()


SOURCE = MarkovSource.random(3, 0.3, rng=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "schedule"),
    few(
        [4, 1],
        [HybridSchedule(SMALL, 0.5), UniformSchedule(SMALL), MaskedSchedule(SMALL)],
        every=5,
    ),
)
def test_frequencies_of_one_token_are_those_of_the_source(schedule, steps):
    """Exact for any noise and number of steps."""
    world = SmallWorld(SOURCE, schedule, length=1)
    plan = sampling_plan(even_times(steps))
    options = ((2,), (0,))
    request = Request(tokens=(None,), plan=plan, constraints=(slot(0, options, 4),))
    noisy = torch.tensor([[0]]), torch.tensor([0.5], dtype=torch.float64)
    p = tabulated(world).x_theta(*noisy)[0, 0]
    assert chi_square_p(frequencies(world, request, options), torch.stack([p[2], p[0]])) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", few([HybridSchedule(SMALL, 0.5), UniformSchedule(SMALL)], every=2)
)
def test_a_choice_of_all_tokens_is_the_reverse_chain(schedule):
    """The options are drawn given the current tokens: jointly with the other blank."""
    uniform, same = torch.full((3,), 1 / 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    source = MarkovSource(uniform, 0.05 + 0.85 * same)
    world, times = SmallWorld(source, schedule, length=2), even_times(5)
    options = tuple((v,) for v in range(3))
    request = Request(
        tokens=blanks(2), plan=sampling_plan(times), constraints=(slot(0, options, 4),)
    )
    p = prior(schedule, times)
    chain = p[world.noisy].prod(-1)
    for t, s in pairwise(times):
        at_t, at_s = world.times(t.clamp_max(1 - 1e-9)), world.times(s)
        rows = posterior(schedule, at_s, at_t, world.noisy, world.leave_one_out(world.noisy, at_t))
        steps = rows[:, torch.arange(2), world.noisy].prod(-1)  # [Z, Z]
        chain = chain @ steps
    num = 1500
    session = Session(tabulated(world), schedule, batch_size=num)
    samples = session.sample([replace(request, sample_index=k) for k in range(num)])
    observed = counts(world, torch.tensor([sample.tokens for sample in samples]))
    assert chi_square_p(observed, chain) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("step", few([ancestral, Confidence()], every=2))
def test_frequencies_given_other_tokens(step):
    """Under masking noise, given tokens condition exactly."""
    world = SmallWorld(SOURCE, MaskedSchedule(SMALL), length=3)
    plan = sampling_plan(even_times(4), step)
    options = ((0,), (1,))
    request = Request(tokens=(0, None, 1), plan=plan, constraints=(slot(1, options, 4),))
    noisy = torch.tensor([[0, 3, 1]]), torch.tensor([0.5], dtype=torch.float64)
    p = tabulated(world).x_theta(*noisy)[0, 1]
    assert chi_square_p(frequencies(world, request, options), p[:2]) > 0.01


@pytest.mark.slow
def test_frequencies_in_one_step_are_the_product_of_x_theta():
    world = SmallWorld(SOURCE, MaskedSchedule(SMALL), length=3)
    options = ((0, 1, 2), (2, 2, 0), (1, 1, 1))
    plan = sampling_plan(even_times(1))
    request = Request(tokens=blanks(3), plan=plan, constraints=(slot(0, options, 4),))
    x = tabulated(world).x_theta(torch.full((1, 3), 3), torch.ones(1, dtype=torch.float64))[0]
    p = torch.stack([x[range(3), option].prod() for option in torch.tensor(options)])
    assert chi_square_p(frequencies(world, request, options), p) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", few([4, 1], every=2))
def test_samples_are_the_same_alone_and_in_any_batch(batch_size):
    rng, requests = random.Random(3), list[Request]()
    for index in range(16):
        request = random_request(rng, VOCAB, 24, index=index, schedule=NOISES["masked"])
        if index % 2:
            num = rng.randint(1, 4)
            options = [tuple(rng.choices(range(16), k=num)) for _ in range(rng.randint(1, 5))]
            constraints = (slot(len(request.tokens), options),)
            tokens, plan = request.tokens + (None,) * num, sampling_plan(even_times(4))
            request = replace(
                request, tokens=tokens, protected=None, constraints=constraints, plan=plan
            )
        requests.append(request)
    options = {"batch_size": batch_size, "pad_to_multiple_of": 8, "max_length": 40}
    schedule = NOISES["masked"]
    together = Session(MODEL, schedule, **options).sample(requests)
    for request, sample in zip(requests, together, strict=True):
        assert Session(MODEL, schedule, **options).sample([request]) == [sample]


def test_constraints_take_no_forward_passes():
    network = CountingNetwork(MODEL)
    for noise in ("masked", "hybrid"):
        session = Session(network, NOISES[noise])
        for request in requests_of(sampling_plan(even_times(40)), num=3):
            network.forward_passes = 0
            (sample,) = session.sample([request])
            assert network.forward_passes == sample.forward_passes < 41


@pytest.mark.parametrize(
    "constraints, error, match",
    [
        ([Constraint(one_of((), 17), 2, 3)], DataError, "accepts none"),
        ([Constraint(one_of(((1,),), 17), 2, 4)], DataError, "a text in 2 tokens"),
        ([Constraint(one_of(((1, 2),), 17), 1, 3)], DataError, "1 of them given"),
        ([Constraint(one_of(((1,),), 17), 8, 9)], ConfigError, "start 8 and stop 9"),
        ([Constraint(one_of(((1,),), 17), -1, 0)], ConfigError, "start -1"),
        ([slot(2, OPTIONS), slot(4, ((1,),))], ConfigError, "start 4 after stop 5"),
        ([slot(2, ((16,),))], ConfigError, "without its mask"),
        ([slot(2, ((1,),), 5)], ConfigError, "got 5 tokens"),
        ([OPTIONS], ConfigError, "request.constraints must be a tuple of Constraints"),
    ],
)
def test_wrong_constraints_are_refused(constraints, error, match):
    plan = sampling_plan(even_times(2))
    request = Request(tokens=TOKENS, plan=plan, constraints=tuple(constraints))
    with pytest.raises(error, match=match):
        Session(MODEL, NOISES["masked"]).sample([request])


def test_tokens_of_an_automaton_are_of_the_vocabulary():
    with pytest.raises(DataError, match=r"got \[17\]"):
        one_of(((17,),), 17)


def test_a_plan_with_constraints_ends_at_time_0():
    plan = sampling_plan(torch.tensor([1, 0.5]))
    with pytest.raises(ConfigError, match="request.plan must reach time 0"):
        Session(MODEL, NOISES["masked"]).sample(
            [Request(tokens=TOKENS, plan=plan, constraints=SLOTS)]
        )


# the definition, by enumeration


LENGTH, FIVE = 4, Vocab(5, mask_id=4)


def random_automaton(rng: random.Random) -> Automaton:
    """Any automaton of up to 4 states over the classes of 4 tokens; half of them with an end."""
    num_states, labels = rng.randint(1, 4), [rng.randrange(3) for _ in range(4)] + [3]
    edges = [
        (state, label, rng.randrange(num_states))
        for state in range(num_states)
        for label in range(3)
        if rng.random() < 0.7
    ]
    accepting = np.array([rng.random() < 0.5 for _ in range(num_states)])
    accepting[rng.randrange(num_states)] = True
    automaton = Automaton(np.array(labels), 3, np.array(edges).reshape(-1, 3), accepting)
    if rng.random() < 0.5:
        labels[3] = 3
        edges = np.array([edge for edge in edges if edge[1] != 3]).reshape(-1, 3)
        return Automaton(np.array(labels), 3, edges, accepting).with_end([3])
    return automaton


def is_accepted(automaton: Automaton, tokens) -> bool:
    state = automaton.state_after(tokens)
    return state is not None and bool(automaton.is_accepting[state])


def definition(x_theta, schedule, z, t, constraint, given=(), ignored=()):
    """Return all texts, and P(x | z, accepted) without and with the factor of each own token."""
    texts = torch.tensor(list(product(range(FIVE.size), repeat=LENGTH)))
    place = slice(constraint.start, constraint.stop)
    accepted = [is_accepted(constraint.automaton, x[place]) for x in texts.tolist()]
    noise, alpha = noise_at(schedule, t, z)[0], schedule.alpha(t)
    position = range(LENGTH)
    own = x_theta[position, texts]
    evidence = alpha * (texts == z[0]) + noise
    if len(ignored):
        evidence[:, ignored] = 1.0
    for i in given:
        own[:, i], evidence[:, i] = (texts[:, i] == z[0, i]).double(), 1.0
    joint = (own * evidence).prod(-1) * torch.tensor(accepted)
    alone = torch.zeros(LENGTH, FIVE.size, dtype=torch.float64)
    for i in position:
        others = (own * evidence)[:, [k for k in position if k != i]].prod(-1) * own[:, i]
        alone[i].index_add_(0, texts[:, i], others * torch.tensor(accepted))
    return texts, joint, alone / alone.sum(-1, keepdim=True)


SCHEDULES = [MaskedSchedule(FIVE), HybridSchedule(FIVE, 0.3), UniformSchedule(FIVE)]


def random_case(seed: int):
    rng = random.Random(seed)
    schedule, generator = SCHEDULES[seed % 3], torch.Generator().manual_seed(seed)
    x_theta = torch.rand(LENGTH, FIVE.size, dtype=torch.float64, generator=generator)
    x_theta[:, 4] = 0
    x_theta /= x_theta.sum(-1, keepdim=True)
    while True:
        first = rng.randrange(2)
        constraint = Constraint(random_automaton(rng), first, LENGTH - rng.randrange(2))
        z = [4 if rng.random() < 0.6 else rng.randrange(4) for _ in range(LENGTH)]
        z = [rng.randrange(4) if schedule is SCHEDULES[2] else token for token in z]
        z = torch.tensor([z])
        given = [i for i in range(LENGTH) if z[0, i] < 4 and rng.random() < 0.3]
        t = torch.tensor([rng.uniform(0.2, 0.8)], dtype=torch.float64)
        texts, joint, alone = definition(x_theta, schedule, z, t, constraint, given)
        if joint.sum() > 0:
            break
    network = FunctionNetwork(lambda z, t: x_theta.expand(len(z), LENGTH, FIVE.size))
    request = Request(tokens=blanks(LENGTH), plan=sampling_plan(even_times(1)))
    return schedule, network, replace(request, constraints=(constraint,)), z, t, given, joint, alone


def constrained_rows(schedule, network, request, z, t, given, num: int = 1):
    """The rows of `num` copies of a sequence, and their state."""
    everywhere = torch.ones(num, LENGTH, dtype=torch.bool)
    protected, zeros = ~everywhere, torch.zeros(num, dtype=torch.int64)
    protected[:, given] = True
    index = torch.arange(num)
    state = start(schedule, z.repeat(num, 1), protected, None, everywhere, zeros, index)
    predict = Constrained(NetworkPredict(network, FIVE.size, num), schedule, [request] * num)
    return predict(state, t.repeat(num), state.free), state


@pytest.mark.parametrize("seed", few(range(60), every=2))
def test_rows_are_the_conditional_distribution(seed):
    *case, given, joint, alone = random_case(seed)
    rows, state = constrained_rows(*case, given)
    free = state.free[0]
    torch.testing.assert_close(rows.dense[0, free], alone[free], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("seed", few(range(12), every=4))
def test_drawn_texts_follow_their_joint_distribution(seed):
    *case, given, joint, _ = random_case(seed)
    rows, state = constrained_rows(*case, given, num=2000)
    tokens = torch.where(state.free, rows.drawn.dense.argmax(-1), state.tokens)
    index = (tokens * FIVE.size ** torch.arange(LENGTH - 1, -1, -1)).sum(-1)
    observed = torch.bincount(index, minlength=len(joint)).double()
    assert_frequencies(case[2].constraints[0], observed, joint)


@pytest.mark.parametrize("seed", few(range(20, 32), every=4))
def test_some_positions_are_drawn_together_given_the_others(seed):
    """As `Gibbs` draws them: their own tokens do not matter, and all others do."""
    schedule, network, request, z, t, given, *_ = random_case(seed)
    rng, constraint = random.Random(seed), request.constraints[0]
    where = torch.tensor([i not in given and rng.random() < 0.6 for i in range(LENGTH)])
    rows, state = constrained_rows(schedule, network, request, z, t, given, num=2000)
    token, _ = rows.draw(state.random(Stream.TOKEN), where.expand_as(state.free))
    x_theta = network.x_theta(z, t)[0]
    texts, joint, _ = definition(x_theta, schedule, z, t, constraint, given, where)
    place = FIVE.size ** torch.arange(LENGTH - 1, -1, -1) * where
    expected = torch.zeros_like(joint).index_add(0, (texts * place).sum(-1), joint)
    drawn = torch.bincount((token * place).sum(-1), minlength=len(joint)).double()
    assert_frequencies(constraint, drawn, expected)


def assert_frequencies(constraint: Constraint, observed, joint) -> None:
    inside = torch.zeros(LENGTH, dtype=torch.bool)
    inside[constraint.start : constraint.stop] = True
    if not inside.all():  # positions outside keep x_theta, so only those inside are compared
        places = FIVE.size ** torch.arange(LENGTH - 1, -1, -1)
        texts = torch.tensor(list(product(range(FIVE.size), repeat=LENGTH)))
        key = (texts * inside * places).sum(-1)
        observed = torch.zeros_like(joint).index_add(0, key, observed)
        joint = torch.zeros_like(joint).index_add(0, key, joint)
    assert chi_square_p(observed, joint / joint.sum()) > 0.001
