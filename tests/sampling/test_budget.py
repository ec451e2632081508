"""Budgets: half of the work is for other passes, and all of it obeys the limits of its call."""

import asyncio
import contextvars
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from support.counting_network import CountingNetwork
from support.sampling_worlds import random_denoiser
from support.stepped_session import SteppedSession

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, LimitReached, Overloaded
from gidd.sampling import Budget, Request, Session, Threshold, blanks, run_sync, sampling_plan
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
MODEL = random_denoiser(VOCAB, max_length=32)
TOKENS = 4


def request(steps: int) -> Request:
    plan = sampling_plan(even_times(steps), Threshold(fill=1.0))
    return Request(tokens=blanks(TOKENS), plan=plan)


class World:
    """A session that the test steps, a clock that it sets, and threads whose calls compute."""

    def __init__(self) -> None:
        self.now, self.made = 0.0, list[str]()
        self.network = CountingNetwork(MODEL)
        clock = {"clock": lambda: self.now}
        self.session = SteppedSession(self.network, MaskedSchedule(VOCAB), **clock)
        self.threads = ThreadPoolExecutor(8)
        self.opened = list[Budget]()

    def budget(self, **settings) -> Budget:
        self.opened.append(Budget(clock=lambda: self.now, **settings))
        return self.opened[-1]

    def start(self, budget: Budget, function) -> Future:
        """Run a function in a thread and inside of a budget; return when its work is ready."""
        before, context = self.session.ready, contextvars.copy_context()
        context.run(budget.__enter__)
        future = self.threads.submit(context.run, function)
        while self.session.ready == before and not future.done():
            time.sleep(0.0005)
        return future

    def submit(self, name: str, number: int, budget: Budget, cost: int = TOKENS) -> Future[None]:
        """Compute passes that write their name."""

        def passes() -> None:
            for _ in range(number):
                run_sync(self.session.compute(partial(self.made.append, name), cost))

        return self.start(budget, passes)

    def step(self, futures: list[Future[None]], num_requests: int = 0) -> None:
        """Make one step when all that are not done wait for one."""
        while sum(not one.done() for one in futures) + num_requests > self.session.ready:
            time.sleep(0.0005)
        self.session.step()


@pytest.fixture
def world():
    found = World()
    yield found
    for budget in found.opened:
        budget.cancel()
    found.threads.shutdown()


def test_sampling_and_other_passes_have_half_of_the_work_each(world):
    progress = world.session.submit(request(9))
    passes = world.submit("score", 3, world.budget(), cost=2 * TOKENS)
    steps = []
    while not passes.done() or not progress.is_done:
        world.step([passes], not progress.is_done)
        steps.append((progress.steps_done, len(world.made)))
    assert steps[:6] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]
    assert steps[-1] == (9, 3)


def test_a_short_call_does_not_wait_for_long_ones_and_none_starves(world):
    long = [world.submit(name, 20, world.budget()) for name in ("a", "b")]
    for _ in range(20):
        world.step(long)
    short = world.submit("short", 3, world.budget())
    del world.made[:]
    while not short.done():
        world.step([*long, short])
    assert len(world.made) <= 6 and "a" in world.made
    while not all(future.done() for future in long):
        world.step(long)
    assert world.session.counters.work == 43 * TOKENS


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_passes_of_calls_that_are_cancelled_or_late_are_not_made(world, how):
    budget = world.budget(seconds=10)
    running, other = world.submit("late", 9, budget), world.submit("other", 2, world.budget())
    world.step([running, other])
    while world.session.ready < 2:
        time.sleep(0.0005)
    if how == "late":
        world.now = 10.0
    else:
        budget.cancel()
    world.session.step()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else LimitReached):
        running.result(20)
    assert world.made.count("late") == 1 and budget.computed == TOKENS
    while not other.done():
        world.step([other])
    again = world.submit("late", 1, budget)  # and begins nothing else
    assert isinstance(again.exception(20), asyncio.CancelledError | LimitReached)
    assert world.made.count("late") == 1


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
def test_an_error_of_a_pass_reaches_its_own_caller(world, error):
    def fail() -> None:
        raise error

    def compute() -> None:
        run_sync(world.session.compute(fail, 1))

    failing = world.start(world.budget(), compute)
    other = world.submit("other", 2, world.budget())
    while not (failing.done() and other.done()):
        world.step([failing, other])
    assert type(failing.exception()) is (
        ValueError if isinstance(error, ValueError) else RuntimeError
    )
    assert world.made == ["other"] * 2


def test_passes_are_made_in_the_thread_of_the_session():
    session = Session(MODEL, MaskedSchedule(VOCAB))
    assert run_sync(session.compute(lambda: 3, 1)) == 3
    with Budget(seconds=0.0), pytest.raises(LimitReached, match="within 0 seconds"):
        run_sync(session.compute(lambda: 3, 1))


def test_work_is_charged_before_it_is_made_and_given_back_if_it_was_not(world):
    charges: list[int] = []
    budget = world.budget(charge=charges.append, max_cost=100)
    budget.reserve(10 * TOKENS)
    running = world.submit("score", 10, budget)
    for _ in range(3):
        world.step([running])
    while world.session.ready < 1:
        time.sleep(0.0005)
    assert charges == [40] and budget.computed == 12  # nothing beyond what was reserved
    with pytest.raises(ConfigError, match=r"at most 100.*got 101"):
        budget.reserve(61)
    budget.cancel()
    assert isinstance(running.exception(20), asyncio.CancelledError)
    assert sum(charges) == budget.cost == 12


def test_samples_are_charged_as_a_whole_before_the_first_step(world):
    charges: list[int] = []

    def run(number: int) -> None:
        run_sync(world.session.run_all([request(5)] * number))

    budget = world.budget(max_cost=40, charge=charges.append)
    too_many = world.start(budget, partial(run, 3))
    with pytest.raises(ConfigError, match="got 60"):
        too_many.result(20)
    assert not charges and not world.network.forward_passes and not world.session.pending
    running = world.start(budget, partial(run, 2))
    world.step([], 2)
    budget.cancel()
    assert isinstance(running.exception(20), asyncio.CancelledError)
    assert charges == [40, -36] and world.network.forward_passes == 1


def test_a_charge_that_raises_refuses_the_work(world):
    def refuse(cost: int) -> None:
        raise Overloaded("too much", 3.0)

    refused = world.submit("x", 1, world.budget(charge=refuse))
    with pytest.raises(Overloaded):
        refused.result(20)
    assert not world.made


def test_a_budget_inside_of_another_is_limited_by_both():
    session = Session(MODEL, MaskedSchedule(VOCAB))
    charges: list[int] = []
    with Budget(max_cost=50, charge=charges.append, record_edits=False) as outer:
        with Budget(max_cost=30) as inner:
            (sample,) = session.sample([request(4)])
            assert sample.edits == () and inner.cost == inner.computed == outer.computed == 16
            with pytest.raises(ConfigError, match="at most 30.*got 32"):
                session.sample([request(4)])
        with pytest.raises(ConfigError, match="at most 50.*got 56"), Budget(max_cost=90):
            session.sample([request(10)])
        with Budget(seconds=10):
            outer.cancel()
            with pytest.raises(asyncio.CancelledError):
                session.sample([request(1)])
    assert sum(charges) == 16 and Budget.current().cost == 0


def test_what_is_begun_inside_of_a_budget_ends_with_it():
    session = Session(MODEL, MaskedSchedule(VOCAB))

    async def leave() -> asyncio.Task:
        with Budget():
            task = asyncio.ensure_future(session.run(request(100_000)))
            while not session.counters.steps:
                await asyncio.sleep(0.001)
        await asyncio.wait([task])
        return task

    assert run_sync(leave()).cancelled() and not session.pending
