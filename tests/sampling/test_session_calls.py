"""Coroutines over a session: they share forward passes, fail alone, and leave no thread."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from support.counting_network import CountingNetwork
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError, LimitReached
from gidd.sampling import (
    Budget,
    Limits,
    Request,
    Session,
    Threshold,
    ancestral,
    blanks,
    gather,
    prompt,
    run_sync,
    sampling_plan,
)
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
SCHEDULE = MaskedSchedule(VOCAB)
MODEL = random_denoiser(VOCAB, max_length=32)
PLAN = sampling_plan(even_times(4), Threshold(fill=1.0))
ENDLESS = sampling_plan(even_times(100_000))
BLANKS = blanks(4)


def request(index: int, tokens=BLANKS) -> Request:
    return Request(tokens=tokens, plan=PLAN, sample_index=index)


async def twice(session: Session, index: int) -> tuple[int, ...]:
    """Sample a sequence, then one that begins with it."""
    first = await session.run(request(index))
    second = await session.run(request(index, prompt(8, first.tokens)))
    return second.tokens


def wait_until(condition) -> None:
    """Wait, and fail after a time that no load explains."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Gate:
    """A network whose forward passes end when the test lets them."""

    accepts_padding = False

    def __init__(self) -> None:
        self.begun, self.may_end = 0, threading.Semaphore(0)

    def hidden(self, z, t, valid=None):
        self.begun += 1
        assert self.may_end.acquire(timeout=60)
        return MODEL.hidden(z, t)

    def distribution(self, hidden):
        return MODEL.distribution(hidden)


# sharing


def test_coroutines_share_forward_passes_and_have_the_results_they_have_alone():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE, batch_size=4, pad_to_multiple_of=8, max_length=32)
    alone = [run_sync(twice(session, i)) for i in range(4)]
    assert network.forward_passes == 4 * 8
    network.forward_passes = 0
    assert run_sync(gather(twice(session, i) for i in range(4))) == alone
    assert network.forward_passes == 8
    network.forward_passes = 0
    halves = (gather([twice(session, i), twice(session, i + 1)]) for i in (0, 2))
    assert sum(run_sync(gather(halves)), []) == alone and network.forward_passes == 8


def test_a_larger_batch_size_is_a_shape_of_the_same_session():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE)
    requests = [request(i) for i in range(8)]
    samples = session.sample(requests, batch_size=4)
    assert network.forward_passes == 8
    assert samples == Session(MODEL, SCHEDULE, batch_size=4).sample(requests)


def test_threads_share_a_session_and_have_the_samples_they_have_alone():
    session = Session(MODEL, SCHEDULE, batch_size=2)
    expected = [run_sync(twice(session, index)) for index in range(6)]
    finished = session.counters.finished
    with ThreadPoolExecutor(6) as threads:
        found = threads.map(lambda index: run_sync(twice(session, index)), range(6))
        assert list(found) == expected
    assert session.counters.finished == 2 * finished == 24


def test_a_coroutine_may_await_anything():
    session = Session(MODEL, SCHEDULE)

    async def waits() -> tuple[int, ...]:
        await asyncio.sleep(0.002)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: None)
        return await twice(session, 0)

    expected = run_sync(twice(session, 0))
    assert run_sync(gather([waits(), waits()])) == [expected] * 2


def test_a_session_runs_inside_a_running_event_loop():
    session = Session(MODEL, SCHEDULE)

    async def cell() -> tuple[int, ...]:  # as in a notebook
        return run_sync(twice(session, 0))

    assert asyncio.run(cell()) == run_sync(twice(session, 0))


# failures


def test_a_call_that_fails_does_not_disturb_others():
    session = Session(MODEL, SCHEDULE, batch_size=4, max_length=32)

    async def fails() -> str:
        with pytest.raises(DataError, match=r"token ids must be in \[0, 17\)"):
            await session.run_all([request(0), request(1, (99,))])
        return "refused"

    async def recovers() -> str:
        try:
            await session.run(request(0), Limits(forward_passes=1, on_limit="abort"))
        except LimitReached as error:
            return str(error)
        return ""

    good, refused, limited = run_sync(gather([twice(session, 3), fails(), recovers()]))
    assert refused == "refused" and "1 forward_passes" in limited
    assert good == run_sync(twice(session, 3))


def test_the_first_error_of_a_call_ends_its_other_requests():
    def fail(schedule, s, t, state, predict):
        raise ZeroDivisionError

    session = Session(MODEL, SCHEDULE, batch_size=2)
    endless = replace(request(0), plan=ENDLESS)
    failing = replace(request(1), plan=sampling_plan(even_times(2), fail))
    with pytest.raises(ZeroDivisionError):
        session.sample([endless, failing, endless])
    assert session.pending == 0 and session.counters.cancelled == 2


def test_the_first_error_ends_what_is_gathered():
    session = Session(MODEL, SCHEDULE)

    async def fails() -> None:
        await session.run(request(0))
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        run_sync(gather([session.run(replace(request(0), plan=ENDLESS)), fails()]))
    assert not session.pending


def test_an_error_of_on_step_ends_its_call():
    session = Session(MODEL, SCHEDULE)

    def refuse(events) -> None:
        raise ConfigError("not printed")

    async def watched() -> str:
        with pytest.raises(ConfigError, match="not printed"):
            await session.run(request(0), on_step=refuse)
        return "ended"

    found = run_sync(gather([watched(), twice(session, 1)]))
    assert found == ["ended", run_sync(twice(session, 1))]


def test_events_go_to_those_who_asked():
    session = Session(MODEL, SCHEDULE, batch_size=2)
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    async def watch(name: str, index: int) -> None:
        def see(events):
            seen[name].update(event.request.sample_index for event in events)

        await session.run(request(index), on_step=see)
        await session.run(request(9))

    run_sync(gather([watch("a", 0), watch("b", 1)]))
    assert seen == {"a": {0}, "b": {1}}


@pytest.mark.parametrize("where", ["callback", "step", "pass"])
def test_code_that_a_session_calls_may_call_the_session(where):
    """And nobody waits for the other for ever."""
    session, inner = Session(MODEL, SCHEDULE), []
    (expected,) = session.sample([request(3)])

    def nested(*_) -> None:
        inner.extend(session.sample([request(3)]))
        assert run_sync(session.compute(lambda: 5, 1)) == 5

    def step(schedule, s, t, state, predict):
        nested()
        return ancestral(schedule, s, t, state, predict)

    if where == "callback":
        assert session.sample([request(0)], on_step=nested) == session.sample([request(0)])
    elif where == "step":
        session.sample([replace(request(0), plan=sampling_plan(even_times(4), step))])
    else:
        run_sync(session.compute(nested, 1))
    assert inner == [expected] * (1 if where == "pass" else 4)


def test_a_defect_ends_everything_with_an_error_and_the_next_call_works(monkeypatch):
    session = Session(MODEL, SCHEDULE)

    def fail(self):
        raise AttributeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(type(session._scheduler), "next", fail)
        with pytest.raises(AttributeError, match="a defect"):
            session.sample([request(0), request(1)])
    assert not session.pending
    assert session.sample([request(0)]) == Session(MODEL, SCHEDULE).sample([request(0)])


def test_a_thread_that_cannot_start_is_an_error(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    session = Session(MODEL, SCHEDULE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            session.sample([request(0)])
    assert not session.pending and session.sample([request(0)])


# cancelling


def test_a_coroutine_that_is_cancelled_makes_no_further_step():
    network = Gate()
    session = Session(network, SCHEDULE)

    async def cancelled() -> None:
        task = asyncio.ensure_future(twice(session, 0))
        while not network.begun:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not session.pending
    network.may_end.release()
    wait_until(lambda: session._thread is None)
    assert network.begun == 1


def test_calls_that_are_cancelled_or_late_end_at_once():
    session = Session(MODEL, SCHEDULE)
    endless = replace(request(0), plan=ENDLESS)
    started = threading.Event()

    def run(seconds: float | None, budgets: list[Budget]) -> None:
        with Budget(seconds=seconds) as budget:
            budgets.append(budget)
            started.set()
            session.sample([endless])

    budgets: list[Budget] = []
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(run, 0.01, [])
        with pytest.raises(LimitReached, match=r"within 0\.01 seconds"):
            late.result()
        started.clear()
        cancelled = threads.submit(run, None, budgets)
        started.wait(60)
        wait_until(lambda: session.pending)
        budgets[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            cancelled.result()
    assert not session.pending


def test_an_interrupt_of_the_caller_ends_its_requests():
    session = Session(MODEL, SCHEDULE)

    def interrupt(events) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.sample([replace(request(0), plan=ENDLESS)], on_step=interrupt)
    assert not session.pending

    steps = session.counters.steps

    async def interrupted() -> None:
        task = asyncio.ensure_future(session.run(replace(request(0), plan=ENDLESS)))
        while session.counters.steps == steps:
            await asyncio.sleep(0.001)
        assert session.pending and not task.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert not session.pending


@pytest.mark.skipif(sys.platform == "win32", reason="signals reach the process otherwise")
def test_ctrl_c_ends_the_requests_of_the_main_thread():
    session, presses = Session(MODEL, SCHEDULE), iter([True])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of pytest ignore it

    def press(events) -> None:  # in the session's thread
        if next(presses, False):
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            session.sample([replace(request(0), plan=ENDLESS)], on_step=press)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not session.pending


def test_requests_whose_event_loop_was_closed_end():
    session, loop = Session(MODEL, SCHEDULE), asyncio.new_event_loop()
    task = loop.create_task(session.run(replace(request(0), plan=ENDLESS)))
    while not session.counters.steps:
        loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    wait_until(lambda: not session.pending)
    task._log_destroy_pending = False


# the thread


def test_the_thread_ends_when_nothing_is_left_and_nothing_keeps_the_session():
    session = Session(MODEL, SCHEDULE)
    session.sample([request(0)])
    (thread,) = [one for one in threading.enumerate() if one.name == "gidd-session"]
    thread.join(60)
    reference = weakref.ref(session)
    del session
    gc.collect()
    assert reference() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_a_session_without_the_work_of_its_parent():
    network = Gate()
    session = Session(network, SCHEDULE)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(session.sample, [request(0)])
        wait_until(lambda: network.begun)
        if not (child := os.fork()):  # in the middle of a step of its parent
            network.may_end = threading.Semaphore(100)
            torch.set_num_threads(1)
            is_right = len(session.sample([request(1)])) == 1 and session.counters.finished == 1
            os._exit(0 if is_right else 1)
        for _ in range(4):
            network.may_end.release()
        assert running.result() == Session(MODEL, SCHEDULE).sample([request(0)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_settings_of_torch_are_those_of_the_caller():
    """Autocast belongs to a thread, and requests with it and without it share no forward pass."""
    network = CountingNetwork(MODEL)
    types, hidden = [], network.hidden

    def record(z, t, valid=None):
        types.append(torch.is_autocast_enabled("cpu"))
        assert not torch.is_grad_enabled()
        return hidden(z, t)

    network.hidden = record
    session = Session(network, SCHEDULE, batch_size=2)

    async def with_and_without() -> None:
        plain = asyncio.ensure_future(session.run(request(0)))
        await asyncio.sleep(0)
        with torch.autocast("cpu", torch.bfloat16):
            cast = asyncio.ensure_future(session.run(request(1)))
            await asyncio.sleep(0)
        await plain
        await cast

    run_sync(with_and_without())
    assert sorted(types) == [False] * 4 + [True] * 4
    run_sync(session.compute(lambda: types.append(torch.is_grad_enabled()), 1))
    assert types[-1] is False


# many at once


@pytest.mark.parametrize("num", [400, pytest.param(2_000, marks=pytest.mark.long)])
def test_every_call_ends_exactly_once(num):
    """Threads with event loops of their own; steps, callbacks and passes fail, calls are left."""

    def fail_at_times(schedule, s, t, state, predict):
        if (state.sample_index % 7 == 3).any():
            raise ZeroDivisionError
        return ancestral(schedule, s, t, state, predict)

    def refuse(events) -> None:
        if events[0].index == 0 and events[0].steps_done == 2:
            raise ConfigError("refused")

    session = Session(MODEL, SCHEDULE, batch_size=4)
    plan = sampling_plan(even_times(3), fail_at_times)
    expected: dict[int, object] = {}

    async def call(index: int) -> object:
        own = replace(request(index), plan=plan)
        if index % 5 == 1:
            return await session.compute(lambda: 1 // (index % 2), 4)
        run = session.run(own, on_step=refuse if index % 11 == 0 else None)
        if index % 13 == 0:
            async with asyncio.timeout(0.001 * (index % 3)):
                return await run
        return (await run).tokens

    async def calls(indices: range) -> list[object]:
        return await asyncio.gather(*map(call, indices), return_exceptions=True)

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda k: run_sync(calls(range(k, num, 4))), range(4)))
    allowed = {ZeroDivisionError, ConfigError, TimeoutError}
    for index in range(num):
        result = parts[index % 4][index // 4]
        if isinstance(result, BaseException):
            assert type(result) in allowed, result
        elif isinstance(result, tuple) and index % 13:
            expected[index] = result
    for index in list(expected)[:40]:
        (sample,) = Session(MODEL, SCHEDULE, batch_size=4).sample(
            [replace(request(index), plan=sampling_plan(even_times(3)))]
        )
        assert sample.tokens == expected[index]
    assert not session.pending and session.waiting == 0 and session.expected_wait == 0
    wait_until(lambda: session._thread is None)
    assert not session._batches and not session._outboxes and not session._ended
