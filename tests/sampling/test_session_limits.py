"""A session that a server can trust: failures, cancelling, waiting, costs, turns, threads."""

import contextlib
import gc
import random
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from support.sampling_worlds import random_denoiser
from support.stepped_session import SteppedSession as Session

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, LimitReached, Overloaded
from gidd.sampling import (
    Budget,
    FunctionNetwork,
    Limits,
    Request,
    ancestral,
    blanks,
    sampling_plan,
)
from gidd.sampling.progress import Progress
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
MASKED = MaskedSchedule(VOCAB)
MODEL = random_denoiser(VOCAB, max_length=40)


def keep(schedule, s, t, state, predict):
    """A step that changes nothing and reads nothing."""
    return state


def request(steps: int = 3, length: int = 4, index: int = 0, step=keep) -> Request:
    plan = sampling_plan(even_times(steps), step)
    return Request(tokens=blanks(length), plan=plan, sample_index=index)


def end_of(session: Session, tickets: list[Progress]) -> dict[Progress, list[object]]:
    """Step until nothing is pending, and return the ends of each request."""
    ends: dict[Progress, list[object]] = {ticket: [] for ticket in tickets}
    while session.pending:
        for progress in session.step():
            if progress.is_done:
                ends[progress].append(progress.error or progress.sample)
    return ends


# failures


def test_a_failure_at_admission_ends_its_request_alone(monkeypatch):
    from gidd.sampling import batch

    start = batch.start

    def fail_for_one(schedule, tokens, protected, blank, valid, seed, sample_index, *rest):
        if (sample_index == 1).any():
            raise MemoryError("no memory")
        return start(schedule, tokens, protected, blank, valid, seed, sample_index, *rest)

    monkeypatch.setattr(batch, "start", fail_for_one)
    session = Session(MODEL, MASKED, batch_size=2)
    tickets = [session.submit(request(index=i)) for i in range(5)]
    ends = end_of(session, tickets)
    assert [len(found) for found in ends.values()] == [1] * 5
    assert [isinstance(ticket.error, MemoryError) for ticket in tickets] == [
        i == 1 for i in range(5)
    ]
    assert session.counters.finished == 4 and session.counters.failed == 1


def test_a_length_for_which_there_is_no_memory_fails_its_requests_alone(monkeypatch):
    from gidd.sampling import session as module

    made = module.Batch

    def fail_for_long(network, schedule, shape, *rest):
        if shape.length > 8:
            raise MemoryError("no memory")
        return made(network, schedule, shape, *rest)

    monkeypatch.setattr(module, "Batch", fail_for_long)
    session = Session(MODEL, MASKED)
    short, long = session.submit(request()), session.submit(request(length=9))
    ends = end_of(session, [short, long])
    assert len(ends[short]) == len(ends[long]) == 1
    assert short.sample is not None and isinstance(long.error, MemoryError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, StopIteration, SystemExit])
def test_an_error_that_ends_programs_ends_its_request_alone(error):
    def interrupt(schedule, s, t, state, predict):
        raise error

    session = Session(MODEL, MASKED, batch_size=2)
    expired = session.submit(request(), Limits(seconds=0.0, on_limit="abort"))
    other, good = session.submit(request(step=interrupt)), session.submit(request())
    ends = end_of(session, [expired, other, good])
    assert [len(end) for end in ends.values()] == [1, 1, 1] and good.sample is not None
    assert isinstance(expired.error, LimitReached)
    assert isinstance(other.error, KeyboardInterrupt | RuntimeError)


# cancelling


def test_a_request_that_is_cancelled_during_a_step_has_no_event():
    session = Session(MODEL, MASKED, batch_size=2)
    tickets: list[Progress] = []

    def cancel_first(schedule, s, t, state, predict):
        assert session.cancel(tickets[0])
        return state

    tickets.append(session.submit(request(1, step=cancel_first)))
    tickets.append(session.submit(request(1, index=1)))
    (progress,) = session.step()
    assert progress is tickets[1] and progress.sample is not None
    assert tickets[0].is_cancelled and tickets[0].error is None
    assert session.pending == 0
    assert not session.cancel(tickets[0]) and not session.cancel(tickets[1])
    assert session.counters.cancelled == 1 and session.counters.finished == 1


def test_cancelled_requests_are_not_kept():
    session = Session(MODEL, MASKED)
    active = session.submit(request(50))
    session.step()
    waiting = [session.submit(request(100, index=i)) for i in range(200)]
    plans = [weakref.ref(ticket.request.plan) for ticket in waiting]
    session.step()
    assert session.waiting == 200
    for ticket in waiting:
        session.cancel(ticket)
    session.step()
    assert session.waiting == 0
    del waiting, ticket
    gc.collect()
    assert sum(plan() is not None for plan in plans) <= 64  # entries that the queue may keep
    assert not active.is_done


# waiting


def test_many_requests_expire_in_one_step():
    now = [0.0]
    session = Session(MODEL, MASKED, clock=lambda: now[0])
    one = request(2)
    session.submit(one)
    tickets = [session.submit(one, Limits(seconds=1.0)) for _ in range(1_000)]
    session.step()
    now[0] = 2.0
    compared = [0]

    class Counted(Progress):
        def __eq__(self, other):
            compared[0] += 1
            return self is other

        __hash__ = Progress.__hash__

    for ticket in tickets:
        ticket.__class__ = Counted
    session.step()
    assert compared[0] < 10 * len(tickets)
    assert sum(ticket.num_steps == 1 for ticket in tickets) == len(tickets)


def test_requests_beyond_max_waiting_are_refused_with_the_expected_wait():
    session = Session(MODEL, MASKED, max_waiting=3)
    end_of(session, [session.submit(request(8))])  # so that its speed is known
    tickets = [session.submit(request(5)) for _ in range(3)]
    with pytest.raises(Overloaded, match="3 requests wait, at most 3 may") as caught:
        session.submit(request())
    assert caught.value.seconds > 0
    assert session.counters.refused == 1
    session.step()  # one of them has a row
    tickets.append(session.submit(request()))
    assert all(len(end) == 1 for end in end_of(session, tickets).values())
    assert session.expected_wait == 0


def test_the_cost_of_a_request_is_known_and_limited():
    session = Session(MODEL, MASKED, batch_size=2, pad_to_multiple_of=16, max_length=40)
    assert session.cost(request(5, length=9)) == 5 * 16
    assert session.cost(request(5, length=9), batch_size=3) == 5 * 9
    for steps in (5, 6):
        with Budget(max_cost=80) as budget, contextlib.ExitStack() as stack:
            if steps == 6:
                match = "at most 80.*got 96.*fewer steps"
                stack.enter_context(pytest.raises(ConfigError, match=match))
            session.submit(request(steps, length=9))
            assert budget.cost == 80


def test_a_higher_priority_comes_first():
    session = Session(MODEL, MASKED)
    low = [session.submit(request(2)) for _ in range(3)]
    high = session.submit(request(2), priority=1)
    ends = []
    while session.pending:
        ends += [progress for progress in session.step() if progress.sample is not None]
    assert ends == [high, *low]


# turns


def test_short_plans_of_one_length_do_not_wait_for_long_plans_of_another():
    session = Session(MODEL, MASKED)
    long = [session.submit(request(64, length=32)) for _ in range(4)]
    for _ in range(10):
        session.step()
    short = session.submit(request(8))
    steps = 0
    while short.sample is None:
        session.step()
        steps += 1
    assert steps <= 10
    assert not any(ticket.is_done for ticket in long)


def test_a_short_plan_does_not_wait_for_long_plans_of_its_length():
    """Half of the steps are its own; the sequence that waits meanwhile is not changed by it."""
    session = Session(MODEL, MASKED)
    plans = [sampling_plan(even_times(steps)) for steps in (12, 4)]
    long = [Request(tokens=blanks(8), plan=plans[0], sample_index=i) for i in range(3)]
    short = Request(tokens=blanks(8), plan=plans[1], sample_index=7)
    tickets = [session.submit(one) for one in long]
    session.step()
    tickets.append(session.submit(short))
    steps = 0
    while tickets[-1].sample is None:
        session.step()
        steps += 1
    assert steps <= 8 and not any(ticket.is_done for ticket in tickets[:-1])
    end_of(session, tickets)
    expected = Session(MODEL, MASKED).sample([*long, short])
    assert [ticket.sample for ticket in tickets] == expected


def test_row_buckets_follow_the_number_of_active_requests():
    shapes = []

    def predict(z, t):
        shapes.append(len(z))
        return torch.full((*z.shape, VOCAB.size), 1 / VOCAB.size)

    session = Session(FunctionNetwork(predict), MASKED, batch_size=8, row_buckets=(1, 4))
    reading = sampling_plan(even_times(1), ancestral)
    for num in (1, 3, 5, 9):
        tickets = [
            session.submit(Request(tokens=blanks(4), plan=reading, sample_index=i))
            for i in range(num)
        ]
        end_of(session, tickets)
    assert shapes == [1, 4, 8, 8, 1]
    assert session.counters.rows == sum(shapes) and session.counters.used_rows == 18
    with pytest.raises(ConfigError, match="row_buckets"):
        Session(MODEL, MASKED, batch_size=8, row_buckets=(16,))


def test_no_length_starves():
    session = Session(MODEL, MASKED)
    endless = session.submit(request(100_000, length=32))
    for _ in range(400):
        if session.pending < 3:
            session.submit(request(2))
        session.step()
    assert endless.steps_done >= 3
    session.cancel(endless)


def test_edits_are_recorded_if_asked_for():
    one = Request(tokens=blanks(8), plan=sampling_plan(even_times(4)))
    session = Session(MODEL, MASKED, batch_size=2)
    tickets = [session.submit(one), session.submit(one, record_edits=False)]
    end_of(session, tickets)
    with_edits, without = (ticket.sample for ticket in tickets)
    assert with_edits is not None and without is not None
    assert with_edits.tokens == without.tokens
    assert len(with_edits.edits) == 8 and without.edits == ()


# threads


@dataclass(frozen=True)
class SometimesFails:
    """A step that fails for one in 50 samples."""

    def __call__(self, schedule, s, t, state, predict):
        if (state.sample_index % 50 == 7).any():
            raise RuntimeError("a step failed")
        return state._replace(tokens=torch.zeros_like(state.tokens))


@pytest.mark.parametrize(
    "number",
    [pytest.param(1_000, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.long)],
)
def test_every_request_ends_exactly_once(number, monkeypatch):
    """4 threads submit, 2 cancel; admission, steps and the network fail at times."""
    from gidd.sampling import batch

    start = batch.start

    def fail_at_times(schedule, tokens, protected, blank, valid, seed, sample_index, *rest):
        if (sample_index % 50 == 11).any():
            raise MemoryError("no memory")
        return start(schedule, tokens, protected, blank, valid, seed, sample_index, *rest)

    def predict(z, t):
        if (z == 5).any():
            raise RuntimeError("the network failed")
        return torch.zeros(*z.shape, VOCAB.size)

    monkeypatch.setattr(batch, "start", fail_at_times)
    session = Session(FunctionNetwork(predict), MASKED, batch_size=8, max_waiting=300)
    plans = [
        sampling_plan(even_times(n), step)
        for n in (1, 2)
        for step in (keep, SometimesFails(), ancestral)
    ]
    endless = session.submit(request(100_000, length=12))
    tickets: list[Progress] = []
    cancelled: set[Progress] = set()
    ends: Counter[Progress] = Counter()
    stop = threading.Event()

    def submit(thread: int) -> None:
        rng = random.Random(thread)
        for index in range(thread, number, 4):
            tokens = [None] * rng.choice((4, 6))
            if index % 50 == 23:
                tokens[0] = 5  # the network fails
            one = Request(tokens=tuple(tokens), plan=rng.choice(plans), sample_index=index)
            while True:
                try:
                    tickets.append(session.submit(one, record_edits=False))
                    break
                except Overloaded:
                    time.sleep(0.001)

    def cancel(thread: int) -> None:
        rng = random.Random(100 + thread)
        while not stop.is_set():
            if tickets and rng.random() < 0.05:
                ticket = tickets[-rng.randint(1, min(50, len(tickets)))]
                if session.cancel(ticket):
                    cancelled.add(ticket)
            time.sleep(0.0005)

    submitters = [threading.Thread(target=submit, args=(i,)) for i in range(4)]
    cancellers = [threading.Thread(target=cancel, args=(i,)) for i in range(2)]
    for thread in (*submitters, *cancellers):
        thread.start()
    sizes: list[int] = []
    while any(thread.is_alive() for thread in submitters) or session.pending > 1:
        for progress in session.step():
            ends[progress] += progress.is_done
        if session.counters.steps % 200 == 0:
            sizes.append(session.waiting)
    stop.set()
    for thread in cancellers:
        thread.join()
    assert len(tickets) == number
    for ticket in tickets:
        assert (ticket in cancelled) == ticket.is_cancelled
        assert ends[ticket] == (0 if ticket.is_cancelled else 1), ticket.error
        assert ticket.is_cancelled or (ticket.sample is None) != (ticket.error is None)
    counters = session.counters
    assert counters.finished + counters.failed + counters.cancelled == number
    assert counters.failed and cancelled and endless.steps_done
    assert max(sizes, default=0) <= 300
    assert session.pending == 1 and session.cancel(endless)
    session.step()
    assert session.waiting == 0 and not session._batches
