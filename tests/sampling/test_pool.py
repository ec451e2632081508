"""A pool: forward passes beside steps have half of the work, and the limits of their jobs."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from support.counting_network import CountingNetwork
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, LimitReached, Overloaded
from gidd.sampling import (
    Jobs,
    Request,
    Session,
    SessionPool,
    Threshold,
    blanks,
    run_job,
    sampling_plan,
    sharing,
)
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
MODEL = random_denoiser(VOCAB, max_length=32)
TOKENS = 4


def request(steps: int) -> Request:
    plan = sampling_plan(even_times(steps), Threshold(fill=1.0))
    return Request(tokens=blanks(TOKENS), plan=plan)


class World:
    """A pool that the test steps, a clock that it sets, and threads whose calls compute."""

    def __init__(self) -> None:
        self.now, self.made = 0.0, list[str]()
        self.network = CountingNetwork(MODEL)
        self.session = Session(self.network, MaskedSchedule(VOCAB), clock=lambda: self.now)
        self.pool = SessionPool(clock=lambda: self.now)
        self.threads = ThreadPoolExecutor(8)
        self.opened = list[Jobs]()

    def jobs(self, **settings) -> Jobs:
        self.opened.append(Jobs(self.pool, **settings))
        return self.opened[-1]

    def submit(self, name: str, number: int, jobs: Jobs, cost: int = TOKENS) -> Future[None]:
        """Compute passes that write their name; return when the first of them waits."""
        before = self.pool.passes.pending

        def passes() -> None:
            for _ in range(number):
                jobs.compute(partial(self.made.append, name), cost)

        future = self.threads.submit(passes)
        while self.pool.passes.pending == before and not future.done():
            time.sleep(0.0005)
        return future

    def step(self, futures: list[Future[None]]) -> None:
        """Make one step when all that are not done wait for one."""
        while sum(not future.done() for future in futures) > self.pool.passes.pending:
            time.sleep(0.0005)
        for source in self.pool.next_steps():
            source.step()


@pytest.fixture
def world():
    found = World()
    yield found
    for jobs in found.opened:
        jobs.cancel()
    found.threads.shutdown()


def test_sampling_and_other_passes_have_half_of_the_work_each(world):
    ticket = world.pool.session_like(world.session).submit(request(9))
    passes = world.submit("score", 3, world.jobs(), cost=2 * TOKENS)
    steps = []
    while not passes.done() or not ticket.is_done:
        world.step([passes])
        steps.append((ticket.steps_done, len(world.made)))
    assert steps[:6] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]
    assert steps[-1] == (9, 3)


def test_a_short_call_does_not_wait_for_long_ones_and_none_starves(world):
    long = [world.submit(name, 20, world.jobs()) for name in ("a", "b")]
    for _ in range(20):
        world.step(long)
    short = world.submit("short", 3, world.jobs())
    del world.made[:]
    while not short.done():
        world.step([*long, short])
    assert len(world.made) <= 6 and "a" in world.made
    while not all(future.done() for future in long):
        world.step(long)
    assert world.pool.passes.counters.work == 43 * TOKENS


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_passes_of_jobs_that_are_cancelled_or_late_are_not_made(world, how):
    jobs = world.jobs(seconds=10)
    running, other = world.submit("late", 9, jobs), world.submit("other", 2, world.jobs())
    world.step([running, other])
    if how == "late":
        world.now = 10.0
    else:
        jobs.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else LimitReached):
        world.step([other])
        running.result(20)
    assert world.made.count("late") == 1 and jobs.computed == TOKENS
    while not other.done():
        world.step([other])
    with pytest.raises((asyncio.CancelledError, LimitReached)):  # and begins nothing else
        jobs.compute(lambda: world.made.append("late"), 1)
    assert world.made.count("late") == 1


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
def test_an_error_of_a_pass_reaches_its_own_caller(world, error):
    def fail() -> None:
        raise error

    failing = world.threads.submit(world.jobs().compute, fail, 1)
    other = world.submit("other", 2, world.jobs())
    while not (failing.done() and other.done()):
        world.step([failing, other])
    assert type(failing.exception()) is (
        ValueError if isinstance(error, ValueError) else RuntimeError
    )
    assert world.made == ["other"] * 2


def test_without_a_thread_that_steps_passes_are_made_at_once():
    assert Jobs().compute(lambda: 3, 1) == 3
    with pytest.raises(LimitReached):
        Jobs(seconds=0.0).compute(lambda: 3, 1)


@contextmanager
def charged(world, **settings):
    """Jobs that record what they are charged."""
    charges: list[int] = []
    jobs = world.jobs(charge=charges.append, **settings)
    yield jobs, charges


def test_work_is_charged_before_it_is_made_and_given_back_if_it_was_not(world):
    with charged(world, max_cost=100) as (jobs, charges):
        jobs.reserve(10 * TOKENS)
        running = world.submit("score", 10, jobs)
        for _ in range(3):
            world.step([running])
        assert charges == [40] and jobs.computed == 12  # nothing beyond what was reserved
        with pytest.raises(ConfigError, match=r"at most 100.*got 101"):
            jobs.reserve(61)
        jobs.cancel()
        assert isinstance(running.exception(20), asyncio.CancelledError)
        jobs.settle()
        assert sum(charges) == jobs.cost == 12


def test_samples_are_charged_as_a_whole_before_the_first_step(world):
    def run(jobs: Jobs, number: int):
        with sharing(jobs):
            return run_job(
                partial(Jobs.sample, session=world.session, requests=[request(5)] * number)
            )

    with charged(world, max_cost=40) as (jobs, charges):
        with pytest.raises(ConfigError, match="got 60"):
            run(jobs, 3)
        assert not charges and not world.network.forward_passes and not world.pool.pending
        running = world.threads.submit(run, jobs, 2)
        while not world.pool.pending:
            time.sleep(0.0005)
        world.step([])
        jobs.cancel()
        assert isinstance(running.exception(20), asyncio.CancelledError)
        jobs.settle()
    assert charges == [40, -36] and world.network.forward_passes == 1


def test_a_charge_that_raises_refuses_the_work(world):
    def refuse(cost: int) -> None:
        raise Overloaded("too much", 3.0)

    with pytest.raises(Overloaded):
        world.jobs(charge=refuse).compute(lambda: world.made.append("x"), 1)
    assert not world.made


def test_sessions_of_one_network_and_shape_are_one(world):
    same = [world.session.new(batch_size=4) for _ in range(5)]
    sessions = {id(world.pool.session_like(session)) for session in [*same, world.session]}
    assert len(sessions) == len(world.pool.sessions) == 2
    other = Session(CountingNetwork(MODEL), MaskedSchedule(VOCAB), batch_size=4)
    assert world.pool.session_like(other).network is other.network
