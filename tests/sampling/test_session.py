"""A session: requests share forward passes, and never a result."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from support.counting_network import CountingNetwork
from support.random_requests import random_request
from support.sampling_worlds import random_denoiser
from support.stepped_session import SteppedSession as Session
from torch import Tensor

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import CheckpointError, ConfigError, LimitReached
from gidd.sampling import (
    FunctionNetwork,
    Limits,
    Request,
    Sample,
    SelfCorrectionStep,
    Temperature,
    Threshold,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.sampling.progress import Progress
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
MASKED = MaskedSchedule(VOCAB)
HYBRID = HybridSchedule(VOCAB, 0.2)
MODEL = random_denoiser(VOCAB, max_length=40)


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def sample_of(progress: Progress) -> Sample:
    assert progress.sample is not None, progress.error
    return progress.sample


# the promise: the same sample in any company


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(MASKED, id="masked", marks=pytest.mark.long),
        pytest.param(HYBRID, id="hybrid"),
    ],
)
@pytest.mark.parametrize(
    ("rows", "num"),
    [(4, 40), *(pytest.param(rows, 200, marks=pytest.mark.long) for rows in (1, 4, 16))],
)
def test_requests_that_come_and_go_have_the_samples_they_have_alone(rows, num, schedule):
    rng, clock = random.Random(rows), Clock()
    options = {"batch_size": rows, "pad_to_multiple_of": 16, "max_length": 40}
    session = Session(MODEL, schedule, **options, clock=clock)
    tickets: list[Progress] = []
    cancelled: dict[Progress, int] = {}
    while len(tickets) < num or session.pending:
        for _ in range(rng.choice((0, 0, 1, 5, 20))):
            if len(tickets) < num:
                request = random_request(rng, VOCAB, 40, index=len(tickets), schedule=schedule)
                tickets.append(session.submit(request, random_limits(rng)))
        pending = [ticket for ticket in tickets if not ticket.is_done]
        if rng.random() < 0.1 and pending:
            ticket = rng.choice(pending)
            session.cancel(ticket)
            cancelled[ticket] = ticket.steps_done
        stepped = session.step()
        assert not any(ticket in cancelled for ticket in stepped)
        clock.now += 1
    assert all(ticket.steps_done == cancelled[ticket] for ticket in cancelled)
    endings = {"cancelled": 0, "aborted": 0, "early": 0, "complete": 0}
    for ticket in tickets:
        if ticket.is_cancelled:
            endings["cancelled"] += 1
        elif ticket.error is not None:
            assert isinstance(ticket.error, LimitReached), ticket.error
            endings["aborted"] += 1
        else:
            found = sample_of(ticket)
            endings["complete" if found.is_complete else "early"] += 1
            assert found == alone(ticket, schedule, options)
    assert min(endings.values()) >= num // 40, endings


def random_limits(rng: random.Random) -> Limits:
    kind = rng.random()
    then = rng.choice(("finish", "abort"))
    if kind < 0.15:
        return Limits(forward_passes=rng.randint(1, 6), on_limit=then)
    if kind < 0.3:
        return Limits(seconds=rng.randint(0, 150), on_limit=then)
    return Limits()


def alone(ticket: Progress, schedule, options) -> Sample:
    """Sample the request of a ticket alone; a deadline ends it at the step at which it did."""
    clock = Clock()
    session = Session(MODEL, schedule, **options, clock=clock)
    again = session.submit(ticket.request, replace(ticket.limits, seconds=ticket.limits.seconds))
    while session.pending:
        ends_early = not sample_of(ticket).is_complete and again.limits.seconds is not None
        if ends_early and again.steps_done == ticket.num_steps - 1:
            clock.now = 1e9
        session.step()
    return sample_of(again)


# forward passes


def passes_of(requests: list[Request], rows: int = 4) -> int:
    network = CountingNetwork(MODEL)
    session = Session(network, MASKED, batch_size=rows, pad_to_multiple_of=16, max_length=40)
    for request in requests:
        session.submit(request)
    session.finish()
    return network.forward_passes


def test_requests_that_differ_in_anything_share_forward_passes():
    def request(step=None, length=16, index=0, **fields):
        step = step or Threshold(fill=1.0)
        plan = sampling_plan(even_times(8), step)
        return Request(tokens=blanks(length), plan=plan, sample_index=index, **fields)

    assert passes_of([request()]) == 8
    assert passes_of([request(index=i) for i in range(4)]) == 8
    assert passes_of([request(processors=(Temperature(0.5 + i),)) for i in range(4)]) == 8
    assert passes_of([request(length=16 - i, index=i) for i in range(4)]) == 8
    steps = [Threshold(fill=1.0), Threshold(fill=0.99), Threshold(fill=1.0, replace=0.5)]
    assert passes_of([request(step, index=i) for i, step in enumerate(steps)]) == 8


def test_a_step_that_reads_nothing_costs_nothing():
    def noop(schedule, s, t, state, predict):
        return state

    plan = sampling_plan(even_times(5), noop)
    assert passes_of([Request(tokens=blanks(4), plan=plan)]) == 0


def test_a_free_row_is_taken_at_the_next_step():
    network = CountingNetwork(MODEL)
    session = Session(network, MASKED, batch_size=2)
    lengths = (3, 9, 6)
    tickets = [
        session.submit(Request(tokens=blanks(8), plan=sampling_plan(even_times(n), Threshold(1.0))))
        for n in lengths
    ]
    session.finish()
    assert [ticket.num_steps for ticket in tickets] == [3, 9, 6]
    assert (
        network.forward_passes == 9
    )  # 3 + 6 in one row, 9 in the other; 8 masks are filled in 8 steps


# isolation


@dataclass(frozen=True)
class Failing:
    """A step that fails for one sample."""

    index: int

    def __call__(self, schedule, s, t, state, predict):
        if (state.sample_index == self.index).any():
            raise RuntimeError("a step failed")
        return state


def test_a_failing_request_ends_alone():
    session = Session(MODEL, MASKED, batch_size=4)
    plan = sampling_plan(even_times(3), Failing(2))
    tickets = [
        session.submit(Request(tokens=blanks(4), plan=plan, sample_index=i)) for i in range(4)
    ]
    good = sampling_plan(even_times(3))
    others = [session.submit(Request(tokens=blanks(4), plan=good)) for _ in range(2)]
    session.finish()
    assert [ticket.error is None for ticket in tickets] == [True, True, False, True]
    assert "a step failed" in str(tickets[2].error)
    assert [sample_of(ticket).forward_passes for ticket in others] == [
        sample_of(others[0]).forward_passes
    ] * 2


def test_a_network_that_fails_on_one_sequence_fails_that_one():
    def x_theta(z: Tensor, t: Tensor) -> Tensor:
        if (z[:, 0] == 3).any():
            raise ConfigError("a sequence must not begin with 3")
        return torch.ones(*z.shape, 17).masked_fill(torch.arange(17) == 16, 0) / 16

    session = Session(FunctionNetwork(x_theta), MASKED, batch_size=4)
    plan = sampling_plan(even_times(3), Threshold(fill=1.0))
    tickets = [
        session.submit(Request(tokens=(first, None, None), plan=plan)) for first in (1, 3, 2)
    ]
    session.finish()
    assert [str(ticket.error) for ticket in tickets if ticket.error] == [
        "a sequence must not begin with 3"
    ]
    assert sample_of(tickets[0]).forward_passes == sample_of(tickets[2]).forward_passes


def test_predictions_that_are_not_finite_fail_their_request_alone():
    def x_theta(z: Tensor, t: Tensor) -> Tensor:
        p = torch.ones(*z.shape, 17).masked_fill(torch.arange(17) == 16, 0) / 16
        return torch.where((z[:, :1, None] == 3), torch.nan, p)

    session = Session(FunctionNetwork(x_theta), MASKED, batch_size=4)
    plan = sampling_plan(even_times(3), Threshold(fill=1.0))
    good, bad = (session.submit(Request(tokens=(first, None, None), plan=plan)) for first in (1, 3))
    session.finish()
    assert sample_of(good).is_complete
    assert isinstance(bad.error, CheckpointError)


def test_a_step_that_returns_unknown_tokens_fails_its_request():
    def broken(schedule, s, t, state, predict):
        return state._replace(tokens=state.tokens + 100)

    session = Session(MODEL, MASKED)
    ticket = session.submit(Request(tokens=blanks(3), plan=sampling_plan(even_times(2), broken)))
    session.finish()
    assert "step broken must return ids of the vocabulary" in str(ticket.error)


@dataclass(frozen=True)
class Broken:
    """A step whose output has a wrong shape or type."""

    field: str
    how: Callable[[Tensor], object]

    def __call__(self, schedule, s, t, state, predict):
        return state._replace(**{self.field: self.how(state.tokens)})


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("tokens", lambda z: z[0]),
        ("tokens", lambda z: z[:, :1]),
        ("tokens", lambda z: z[:, :, None]),
        ("tokens", lambda z: z.float()),
        ("probability", lambda z: torch.zeros(z.shape[1])),
        ("is_converged", lambda z: torch.zeros(z.shape, dtype=torch.bool)),
        ("values", lambda z: (z[0],)),
        ("best", lambda z: z[0]),
        ("best_age", lambda z: z),
    ],
)
def test_a_step_that_returns_a_wrong_shape_fails_its_request_alone(rows, field, how):
    session = Session(MODEL, MASKED, batch_size=rows)
    plan = sampling_plan(even_times(2), Broken(field, how))
    bad = session.submit(Request(tokens=blanks(3), plan=plan))
    good = session.submit(Request(tokens=blanks(3), plan=sampling_plan(even_times(2))))
    for _ in range(10):
        session.step()
    assert f"the step Broken must return {field}" in str(bad.error)
    assert sample_of(good).is_complete and not session.pending


# limits, cancelling, events


def plan_of(num_steps: int):
    return sampling_plan(even_times(num_steps))


def test_a_limit_of_forward_passes_finishes_with_the_most_likely_tokens():
    session = Session(MODEL, HYBRID)
    request = Request(tokens=blanks(12), plan=plan_of(32))
    full, limited = session.submit(request), session.submit(request, Limits(forward_passes=3))
    session.finish()
    assert sample_of(full).is_complete and sample_of(full).forward_passes > 3
    sample = sample_of(limited)
    assert not sample.is_complete and sample.forward_passes == 3
    assert VOCAB.mask_id not in sample.tokens
    assert sample.edits[-1].step == "posterior_correction"


def test_a_limit_that_is_not_reached_changes_nothing():
    session = Session(MODEL, HYBRID)
    request = Request(tokens=blanks(12), plan=plan_of(6))
    full, limited = session.submit(request), session.submit(request, Limits(forward_passes=6))
    session.finish()
    assert sample_of(full) == sample_of(limited)


def test_a_request_can_be_aborted_by_its_limits():
    session = Session(MODEL, HYBRID, clock=(clock := Clock()))
    request = Request(tokens=blanks(12), plan=plan_of(32))
    by_calls = session.submit(request, Limits(forward_passes=2, on_limit="abort"))
    while not by_calls.is_done:
        session.step()
    assert by_calls.forward_passes == 2 and "2 forward_passes" in str(by_calls.error)
    by_time = session.submit(request, Limits(seconds=5, on_limit="abort"))
    session.step()
    clock.now = 5
    (ended,) = session.step()
    assert ended is by_time and isinstance(ended.error, LimitReached)
    assert not session.pending


def test_a_request_that_expires_in_the_queue_has_the_next_free_row():
    session = Session(MODEL, HYBRID, clock=(clock := Clock()))
    request = Request(tokens=blanks(12), plan=plan_of(4))
    first, second, third = (session.submit(request) for _ in range(3))
    hurried = session.submit(request, Limits(seconds=1))
    session.step()
    clock.now = 2
    while not first.is_done:
        session.step()
    session.step()
    assert hurried.is_done and not second.is_done and not third.is_done
    assert sample_of(hurried).forward_passes == 1


def test_a_corrector_that_is_ended_returns_its_best_state():
    session = Session(MODEL, HYBRID)
    plan = corrector_plan(SelfCorrectionStep(temperature=1.0, patience=50), 40, 1e-4)
    request = Request(tokens=tuple(range(12)), plan=plan, protected=(False,) * 12)
    limited = session.submit(request, Limits(forward_passes=9))
    session.finish()
    short = replace(request, plan=corrector_plan(plan.steps[0].step, 8, 1e-4))
    expected = session.submit(short)
    session.finish()
    assert sample_of(limited).tokens == sample_of(expected).tokens


def test_best_tokens_are_those_of_a_plan_that_ends_here():
    step = SelfCorrectionStep(temperature=1.0, patience=50)
    request = Request(
        tokens=tuple(range(12)), plan=corrector_plan(step, 12, 1e-4), protected=(False,) * 12
    )
    session = Session(MODEL, HYBRID)
    ticket = session.submit(request)
    for forward_passes in range(1, 9):
        session.step()
        if forward_passes >= 2:
            other = Session(MODEL, HYBRID)
            short = other.submit(replace(request, plan=corrector_plan(step, forward_passes, 1e-4)))
            other.finish()
            assert ticket.event.best == sample_of(short).tokens


def test_events_tell_every_change():
    session = Session(MODEL, HYBRID, batch_size=2)
    request = Request(
        tokens=blanks(10),
        plan=plan_of(8) + corrector_plan(SelfCorrectionStep(temperature=1.0), 6, 1e-4),
    )
    events = []
    ticket = session.submit(request, on_step=events.extend)
    session.finish()
    tokens, edits = None, []
    for steps, event in enumerate(events, 1):
        if tokens is None:
            undone = list(event.tokens)
            for edit in reversed(event.edits):
                undone[edit.position] = edit.old
            tokens = undone
        for edit in event.edits:
            assert tokens[edit.position] == edit.old
            tokens[edit.position] = edit.new
        assert tuple(tokens) == event.tokens and event.request is request
        assert event.steps_done == steps or event.sample is not None
        edits += event.edits
    last = events[-1]
    assert last.sample == ticket.sample and last.forward_passes == last.sample.forward_passes
    assert tuple(edits) == sample_of(ticket).edits and last.time == 1e-4


@pytest.mark.slow
def test_a_session_keeps_nothing_of_requests_that_are_done():
    session = Session(MODEL, HYBRID, batch_size=2, clock=(clock := Clock()))
    kept = []
    for i in range(120):
        request = Request(tokens=blanks(1 + i % 5), plan=plan_of(2), sample_index=i)
        ticket = session.submit(request, Limits(seconds=1e6) if i % 2 else Limits())
        if i % 7 == 0:
            session.cancel(ticket)
        kept.append(weakref.ref(ticket))
        del ticket, request
        session.finish()
        clock.now += 1
    session.step()
    gc.collect()
    assert sum(ref() is not None for ref in kept) <= 66  # deadlines are dropped in bulk
    assert not session._batches


def test_what_has_no_step_to_make_is_done_at_once():
    session = Session(MODEL, HYBRID)
    fixed = session.submit(Request(tokens=(1, 2), plan=plan_of(4)))
    empty = session.submit(Request(tokens=blanks(2), plan=corrector_plan(Threshold(), 0)))
    session.finish()
    assert sample_of(fixed).tokens == (1, 2) and sample_of(fixed).forward_passes == 0
    assert len(sample_of(empty).tokens) == 2 and session.step() == []
