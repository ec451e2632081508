"""Requests that are wrong in any field are refused when they are submitted."""

import math
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.random_requests import random_request
from support.sampling_worlds import random_denoiser
from support.stepped_session import SteppedSession as Session

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError, GiddError
from gidd.sampling import (
    Confidence,
    FunctionNetwork,
    Limits,
    Plan,
    PlannedStep,
    Request,
    Require,
    SelfCorrectionStep,
    Temperature,
    Threshold,
    ancestral,
    ban,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.vocab import Vocab

VOCAB = Vocab(9, mask_id=8)
MODEL = random_denoiser(VOCAB, max_length=16)
GOOD = Request(tokens=blanks(3), plan=sampling_plan(even_times(2)))
SCHEDULES = [MaskedSchedule(VOCAB), HybridSchedule(VOCAB, 0.2), UniformSchedule(VOCAB)]
JUNK = [None, True, -1, 3.5, math.nan, math.inf, 2**63, 2**70, "a", b"a", [], [1], {}, (), (1,)]
JUNK += [(None,), ("a",), (True,), (-1,), (99,), object(), np.int64(1), (np.int64(1),), {1}, (0.5,)]
FIELDS = ["tokens", "plan", "seed", "sample_index", "protected", "processors", "stop"]
PLANS = [
    sampling_plan(even_times(3), Confidence()),
    sampling_plan(even_times(3), Threshold(fill=0.0)),
    corrector_plan(SelfCorrectionStep(), 1),
    corrector_plan(Threshold(), 3, 0.5),
    Plan(()),
]


@pytest.mark.slow
def test_random_requests_are_refused_or_run():
    rng = random.Random(0)
    sessions = [Session(MODEL, schedule, batch_size=16, max_length=16) for schedule in SCHEDULES]
    refused = errors = 0
    for index in range(2000):
        session = rng.choice(sessions)
        request = random_request(rng, VOCAB, 16, index=index, schedule=session.schedule)
        for name in rng.sample(FIELDS, rng.choice((0, 1, 1, 2))):
            value = rng.choice(PLANS) if name == "plan" and rng.random() < 0.5 else rng.choice(JUNK)
            request = replace(request, **{name: value})
        limits = (
            Limits(forward_passes=rng.choice((1, 2, 3))) if rng.random() < 0.9 else bad_limits(rng)
        )
        try:
            session.submit(request, limits)
        except GiddError as error:
            refused += 1
            assert any(field in str(error) for field in NAMED), error
    for session in sessions:
        while session.pending:
            errors += sum(progress.error is not None for progress in session.step())
    assert errors == 0
    assert 700 < refused < 1700


NAMED = [
    "request",
    "token ids",
    "plan",
    "sampler",
    "self_correction",
    "forward_passes",
    "seconds",
    "on_limit",
]
"""What an error may name: a field of the request, or the part of it that is wrong."""


def bad_limits(rng: random.Random) -> Limits:
    return Limits(
        forward_passes=rng.choice((0, -1, "a", 1.5, True)),
        seconds=rng.choice((None, -1.0, math.nan, math.inf, "a")),
        on_limit=rng.choice(("finish", "stop", None)),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [1, 2]}, r"request.tokens must be a tuple of token ids.*blanks\(\)"),
        ({"tokens": (1, True)}, "request.tokens must be a tuple"),
        ({"tokens": blanks(17)}, "16 tokens, got 17"),
        ({"tokens": ()}, "at least one token"),
        ({"tokens": (1, 9, None)}, r"token ids .*\[0, 9\).*got \[9\]"),
        ({"tokens": (-1, None)}, r"got \[-1\]"),
        ({"stop": (99,)}, "got .99."),
        ({"seed": 2**63}, rf"request.seed .*\[0, 2\*\*63\), got {2**63}"),
        ({"sample_index": 2**63}, rf"request.sample_index .*got {2**63}"),
        ({"sample_index": -1}, "request.sample_index .*got -1"),
        ({"protected": (True,)}, "request.protected .*the 3 tokens, got 1"),
        ({"protected": (False, True, True)}, r"request.protected .*got positions \[1, 2\]"),
        ({"plan": 3}, r"request.plan must be a Plan, got 3. sampling_plan"),
        ({"seed": -1}, r"request.seed must be an integer in \[0, 2\*\*63\), got -1"),
        ({"protected": (1, 0, 0)}, "request.protected must be a tuple of True and False"),
        ({"processors": [Temperature(1)]}, "request.processors must be a tuple of processors"),
        ({"processors": (3,)}, "request.processors must be a tuple of processors"),
        ({"processors": (ban(Vocab(5, mask_id=4), [1]),)}, "vocabulary"),
        ({"processors": (ban(VOCAB, range(4)), ban(VOCAB, range(4, 8)))}, "processors .* no token"),
        ({"processors": (Require(VOCAB, {5}), ban(VOCAB, {5}))}, "processors .* no token"),
        ({"processors": (Require(VOCAB, {5}), Require(VOCAB, {6}))}, "processors .* no token"),
        ({"stop": (None,)}, "request.stop must be a tuple of token ids"),
        ({"plan": corrector_plan(SelfCorrectionStep(), 1)}, "at least 2 consecutive steps, got 1"),
        ({"plan": sampling_plan(even_times(2), Confidence())}, "only masks at t = 1, got"),
    ],
)
def test_an_error_names_the_field_and_the_fix(changes, message):
    session = Session(MODEL, SCHEDULES[2], max_length=16)
    kept = session.submit(GOOD)
    with pytest.raises((ConfigError, DataError), match=message):
        session.submit(replace(GOOD, **changes))
    session.finish()
    assert kept.sample is not None


def test_numbers_of_numpy_are_token_ids():
    session = Session(MODEL, SCHEDULES[1])
    ticket = session.submit(replace(GOOD, tokens=(np.int64(3), None, None)))
    session.finish()
    assert ticket.tokens[0] == 3


@pytest.mark.parametrize("step", [3, None, [ancestral], {}.__class__])
def test_a_plan_refuses_what_is_not_a_step(step):
    if isinstance(step, type):
        step = Unhashable()
    with pytest.raises(ConfigError, match="step 0 of a plan must be a function or a frozen"):
        Plan((PlannedStep(step, 1.0, 0.0),))
    assert Plan((PlannedStep(partial(ancestral), 1.0, 0.0),)).phases == (range(1),)


class Unhashable:
    __hash__ = None

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": 1.5}, {"pad_to_multiple_of": 0}]
)
def test_a_session_refuses_shapes(options):
    with pytest.raises(
        ConfigError, match=r"(batch_size|pad_to_multiple_of) must be an integer of at least 1"
    ):
        Session(MODEL, SCHEDULES[0], **options)


def test_a_network_without_padding_has_sequences_of_one_length():
    network = FunctionNetwork(lambda z, t: z)
    with pytest.raises(
        ConfigError, match="pad_to_multiple_of must be 1 for a network that does not accept"
    ):
        Session(network, SCHEDULES[0], batch_size=4, pad_to_multiple_of=8)
    assert Session(network, SCHEDULES[0], batch_size=4).padded_length(5) == 5


def test_the_padded_length_depends_on_the_request_alone():
    session = Session(MODEL, SCHEDULES[0], batch_size=4, pad_to_multiple_of=8, max_length=14)
    assert [session.padded_length(n) for n in (1, 8, 9, 13, 14)] == [8, 8, 14, 14, 14]
    assert Session(MODEL, SCHEDULES[0], batch_size=1, pad_to_multiple_of=8).padded_length(3) == 3
