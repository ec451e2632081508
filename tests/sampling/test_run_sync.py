"""Many coroutines at once: results in order, not all in progress, and the first error ends all."""

import asyncio
import contextvars

import pytest
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import HybridSchedule
from gidd.sampling import Request, Session, blanks, corrector_plan, gather, no_op, run_sync
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)
SESSION = Session(random_denoiser(VOCAB), HybridSchedule(VOCAB, 0.2), batch_size=4)


class Counted:
    """Coroutines that sample some times and return their index; counts those in progress."""

    def __init__(self) -> None:
        self.running, self.most, self.ended = 0, 0, []

    async def run(self, index, rounds=1, failing=()):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for seed in range(rounds):
                plan = corrector_plan(no_op, 2)
                await SESSION.run(Request(tokens=blanks(3), plan=plan, seed=seed))
            if index in failing:
                raise ZeroDivisionError(index)
            return index
        finally:
            self.running -= 1
            self.ended.append(index)

    def coroutines(self, num, **options):
        return (self.run(k, **options) for k in range(num))


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_results_are_in_order_and_few_are_in_progress(at_once):
    counted = Counted()
    coroutines = (counted.run(k, rounds=1 + 5 * k % 3) for k in range(10))
    assert run_sync(gather(coroutines, at_once)) == list(range(10))
    assert counted.most == min(at_once, 10)
    assert counted.running == 0
    assert run_sync(gather([])) == []


def test_the_first_error_ends_all():
    counted = Counted()
    with pytest.raises(ZeroDivisionError, match="3"):
        run_sync(gather(counted.coroutines(20, rounds=2, failing={3, 4}), at_once=5))
    assert counted.running == 0 and not SESSION.pending
    # the five that began, and one for each that ended before the error was seen
    assert {*range(5)} <= {*counted.ended} <= {*range(8)}


@pytest.mark.parametrize("kind", [list, iter])
def test_an_error_before_the_first_sample(kind):
    counted = Counted()
    with pytest.raises(ZeroDivisionError, match="2"):
        run_sync(gather(kind(list(counted.coroutines(20, rounds=0, failing={2})))))
    assert sorted(counted.ended) == [0, 1, 2]


def test_a_cancelled_gather_ends_all():
    counted = Counted()

    async def cancelled():
        task = asyncio.ensure_future(gather(counted.coroutines(20, rounds=10**6), at_once=3))
        while not counted.running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return counted.running, counted.most

    assert run_sync(cancelled()) == (0, 3) and not SESSION.pending


def test_a_running_event_loop_and_its_context():
    variable = contextvars.ContextVar("variable", default=0)

    async def read():
        return variable.get()

    async def cell():  # as in a notebook
        variable.set(3)
        return run_sync(read())

    assert asyncio.run(cell()) == 3
    variable.set(4)
    assert run_sync(read()) == 4
