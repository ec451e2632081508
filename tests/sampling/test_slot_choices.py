"""Choices: every sample has one of the options in its slot, with the right frequencies."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.cases import few
from support.counting_network import CountingNetwork
from support.random_requests import FIXERS, is_defined, random_request
from support.sampling_worlds import chi_square_p, counts, random_denoiser, tabulated

from gidd.diffusion.process import posterior, prior
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError
from gidd.sampling import (
    AllowedTexts,
    Confidence,
    Gibbs,
    Greedy,
    Guidance,
    Limits,
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
    sampling_plan,
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
SLOT = AllowedTexts(2, ((1, 2, 3), (1, 5, 6), (7, 2, 6), (8, 9, 10)))
OTHER = AllowedTexts(7, ((4,), (11,)))
TOKENS = (5, 6, None, None, None, 7, None, None)


def requests_of(plan, num: int = 6, **fields) -> list[Request]:
    first = Request(tokens=TOKENS, plan=plan, choices=(SLOT, OTHER), **fields)
    return [replace(first, sample_index=index) for index in range(num)]


def assert_chosen(sample) -> None:
    assert sample.tokens[2:5] in SLOT.options and sample.tokens[7:] in OTHER.options
    assert (*sample.tokens[:2], sample.tokens[5]) == (5, 6, 7)


CASES = [(n, step) for n in NOISES for step in STEPS if is_defined(STEPS[step], NOISES[n])]


@pytest.mark.parametrize("case", few(CASES, every=2), ids="-".join)
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
    slot, requests = AllowedTexts(2, ((1,), (5,), (9,))), list[Request]()
    for seed in range(60):
        step = rng.choice(steps)
        plan = sampling_plan(even_times(rng.randint(1, 8)), step)
        requests.append(Request(tokens=(5, 6, None), plan=plan, seed=seed, choices=(slot,)))
    alone = [session.sample([request])[0] for request in requests]
    together = session.sample(requests)
    assert [(one.tokens, one.edits) for one in together] == [(o.tokens, o.edits) for o in alone]
    assert [one.forward_passes for one in together] == [one.forward_passes for one in alone]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "noise"), few(FIXERS, ["hybrid", "uniform"], every=2))
def test_correctors_keep_an_option(noise, name):
    session = Session(MODEL, NOISES[noise])
    for fixer in FIXERS[name]:
        time = 0.5 if name in ("posterior", "self_correction") else 0.0
        plan = sampling_plan(even_times(3), correctors=[Gibbs(distance=1)])
        for sample in session.sample(requests_of(plan + corrector_plan(fixer, 5, time))):
            assert_chosen(sample)


def replace_one(schedule, s, t, state, predict) -> State:
    """A corrector that replaces the first token of the slot alone."""
    is_first = torch.arange(state.tokens.shape[1]) == SLOT.start
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


def frequencies(world: SmallWorld, request: Request, num: int = 1500) -> torch.Tensor:
    """How often each option of the first slot was sampled by the exact denoiser."""
    session = Session(tabulated(world), world.schedule, batch_size=num)
    samples = session.sample([replace(request, sample_index=k) for k in range(num)])
    choices = request.choices[0]
    found = [choices.options.index(sample.tokens[choices.slot]) for sample in samples]
    return torch.bincount(torch.tensor(found), minlength=len(choices.options)).double()


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
    request = Request(tokens=(None,), plan=plan, choices=(AllowedTexts(0, ((2,), (0,))),))
    noisy = torch.tensor([[0]]), torch.tensor([0.5], dtype=torch.float64)
    p = tabulated(world).x_theta(*noisy)[0, 0]
    assert chi_square_p(frequencies(world, request), torch.stack([p[2], p[0]])) > 0.01


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
        tokens=blanks(2), plan=sampling_plan(times), choices=(AllowedTexts(0, options),)
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
    request = Request(tokens=(0, None, 1), plan=plan, choices=(AllowedTexts(1, ((0,), (1,))),))
    noisy = torch.tensor([[0, 3, 1]]), torch.tensor([0.5], dtype=torch.float64)
    p = tabulated(world).x_theta(*noisy)[0, 1]
    assert chi_square_p(frequencies(world, request), p[:2]) > 0.01


@pytest.mark.slow
def test_frequencies_in_one_step_are_the_product_of_x_theta():
    world = SmallWorld(SOURCE, MaskedSchedule(SMALL), length=3)
    options = ((0, 1, 2), (2, 2, 0), (1, 1, 1))
    plan = sampling_plan(even_times(1))
    request = Request(tokens=blanks(3), plan=plan, choices=(AllowedTexts(0, options),))
    x = tabulated(world).x_theta(torch.full((1, 3), 3), torch.ones(1, dtype=torch.float64))[0]
    p = torch.stack([x[range(3), option].prod() for option in torch.tensor(options)])
    assert chi_square_p(frequencies(world, request), p) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", few([4, 1], every=2))
def test_samples_are_the_same_alone_and_in_any_batch(batch_size):
    rng, requests = random.Random(3), list[Request]()
    for index in range(32):
        request = random_request(rng, VOCAB, 24, index=index, schedule=NOISES["masked"])
        if index % 2:
            num = rng.randint(1, 4)
            slot = [tuple(rng.choices(range(16), k=num)) for _ in range(rng.randint(1, 5))]
            choices = (AllowedTexts(len(request.tokens), tuple(dict.fromkeys(slot))),)
            tokens, plan = request.tokens + (None,) * num, sampling_plan(even_times(4))
            request = replace(request, tokens=tokens, protected=None, choices=choices, plan=plan)
        requests.append(request)
    options = {"batch_size": batch_size, "pad_to_multiple_of": 8, "max_length": 40}
    schedule = NOISES["masked"]
    together = Session(MODEL, schedule, **options).sample(requests)
    for request, sample in zip(requests, together, strict=True):
        assert Session(MODEL, schedule, **options).sample([request]) == [sample]


def test_choices_take_no_forward_passes():
    network = CountingNetwork(MODEL)
    for noise in ("masked", "hybrid"):
        session = Session(network, NOISES[noise])
        for request in requests_of(sampling_plan(even_times(40)), num=3):
            network.forward_passes = 0
            (sample,) = session.sample([request])
            assert network.forward_passes == sample.forward_passes < 41


@pytest.mark.parametrize(
    "choices, error, match",
    [
        ([AllowedTexts(2, ())], ConfigError, "got 0 options"),
        ([AllowedTexts(2, ((1, 2), (1, 3, 4)))], ConfigError, r"got 2 options of \[2, 3\] tokens"),
        ([AllowedTexts(2, ((1,), (1,)))], ConfigError, "must be different"),
        ([AllowedTexts(2, ((),))], ConfigError, r"of \[0\] tokens"),
        ([AllowedTexts(1, ((1, 2),))], ConfigError, "2 tokens must be at .*blanks.*start 1"),
        ([AllowedTexts(7, ((1, 2),))], ConfigError, "blanks.*start 7"),
        ([AllowedTexts(-1, ((1,),))], ConfigError, "blanks.*start -1"),
        ([SLOT, AllowedTexts(4, ((1,),))], ConfigError, "another choice, got start 4"),
        ([AllowedTexts(2, ((16,),))], ConfigError, "mask token, 16"),
        ([AllowedTexts(2, ((17,),))], DataError, r"got \[17\]"),
        ([SLOT.options], ConfigError, "request.choices must be a tuple of AllowedTexts"),
    ],
)
def test_wrong_choices_are_refused(choices, error, match):
    plan = sampling_plan(even_times(2))
    request = Request(tokens=TOKENS, plan=plan, choices=tuple(choices))
    with pytest.raises(error, match=match):
        Session(MODEL, NOISES["masked"]).sample([request])


def test_a_plan_with_choices_ends_at_time_0():
    request = Request(tokens=TOKENS, plan=sampling_plan(torch.tensor([1, 0.5])), choices=(SLOT,))
    with pytest.raises(ConfigError, match="request.plan must reach time 0"):
        Session(MODEL, NOISES["masked"]).sample([request])
