"""Coroutines over a session: they share forward passes, and fail alone."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.counting_network import CountingNetwork
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError, DataError, LimitReached
from gidd.sampling import (
    Jobs,
    Limits,
    Request,
    Session,
    SessionPool,
    Threshold,
    blanks,
    prompt,
    run_job,
    run_jobs,
    sampling_plan,
    sharing,
)
from gidd.sampling.jobs import gather, next_block, sample_blocks
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
SCHEDULE = MaskedSchedule(VOCAB)
MODEL = random_denoiser(VOCAB, max_length=32)
PLAN = sampling_plan(even_times(4), Threshold(fill=1.0))


BLANKS = blanks(4)


def request(index: int, tokens=BLANKS) -> Request:
    return Request(tokens=tokens, plan=PLAN, sample_index=index)


async def twice(jobs: Jobs, session: Session, index: int) -> tuple[int, ...]:
    """Sample a sequence, then one that begins with it."""
    (first,) = await jobs.sample(session, [request(index)])
    (second,) = await jobs.sample(session, [request(index, prompt(8, first.tokens))])
    return second.tokens


def test_jobs_share_forward_passes_and_have_the_results_they_have_alone():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE, batch_size=4, pad_to_multiple_of=8, max_length=32)
    functions = [lambda jobs, i=i: twice(jobs, session, i) for i in range(4)]
    alone = [run_job(function) for function in functions]
    assert network.forward_passes == 4 * 8
    network.forward_passes = 0
    assert run_jobs(functions) == alone and network.forward_passes == 8
    network.forward_passes = 0
    assert run_job(lambda jobs: gather(job(jobs) for job in functions)) == alone
    assert network.forward_passes == 8


def test_a_job_that_fails_does_not_disturb_others():
    session = Session(MODEL, SCHEDULE, batch_size=4, max_length=32)

    async def fails(jobs: Jobs) -> str:
        with pytest.raises(DataError, match=r"token ids must be in \[0, 17\)"):
            await jobs.sample(session, [request(0), request(1, (99,))])
        return "refused"

    async def recovers(jobs: Jobs) -> str:
        try:
            await jobs.sample(session, [request(0)], Limits(forward_passes=1, on_limit="abort"))
        except LimitReached as error:
            return str(error)
        return ""

    good, refused, limited = run_jobs([lambda jobs: twice(jobs, session, 3), fails, recovers])
    assert refused == "refused" and "1 forward_passes" in limited
    assert good == run_job(lambda jobs: twice(jobs, session, 3))


def test_a_job_that_is_cancelled_makes_no_further_step():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE)

    async def cancels(jobs: Jobs) -> None:
        task = asyncio.ensure_future(twice(jobs, session, 0))
        while not network.forward_passes:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not jobs.pool.pending

    run_job(cancels)
    assert network.forward_passes == 1


def test_a_job_may_await_anything():
    session = Session(MODEL, SCHEDULE)

    async def waits(jobs: Jobs) -> tuple[int, ...]:
        await asyncio.sleep(0.002)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: None)
        return await twice(jobs, session, 0)

    expected = run_job(lambda jobs: twice(jobs, session, 0))
    assert run_jobs([waits, waits]) == [expected] * 2


def test_jobs_run_inside_a_running_event_loop():
    session = Session(MODEL, SCHEDULE)

    async def cell() -> tuple[int, ...]:  # as in a notebook
        return run_job(lambda jobs: twice(jobs, session, 0))

    assert asyncio.run(cell()) == run_job(lambda jobs: twice(jobs, session, 0))


def test_another_thread_may_step():
    session, jobs, stop = Session(MODEL, SCHEDULE, batch_size=2), Jobs(), threading.Event()

    def step() -> None:
        while not stop.is_set():
            for session in jobs.pool.pending:
                session.step()
            time.sleep(0.0001)

    async def serve() -> list[tuple[int, ...]]:
        return await gather(twice(jobs, session, i) for i in range(20))

    thread = threading.Thread(target=step)
    thread.start()
    try:
        found = asyncio.run(serve())
    finally:
        stop.set()
        thread.join()
    assert found == run_jobs([lambda jobs, i=i: twice(jobs, session, i) for i in range(20)])


def test_an_error_of_on_step_ends_its_job():
    session = Session(MODEL, SCHEDULE)

    def refuse(events) -> None:
        raise ConfigError("not printed")

    async def watched(jobs: Jobs) -> str:
        with pytest.raises(ConfigError, match="not printed"):
            await jobs.sample(session, [request(0)], on_step=refuse)
        return "ended"

    async def other(jobs: Jobs) -> tuple[int, ...]:
        return await twice(jobs, session, 1)

    assert run_jobs([watched, other]) == ["ended", run_job(other)]


def test_the_first_error_ends_what_is_gathered():
    session = Session(MODEL, SCHEDULE)

    async def fails(jobs: Jobs) -> tuple[int, ...]:
        await jobs.sample(session, [request(0)])
        raise ConfigError("no")

    network = CountingNetwork(MODEL)
    long = Request(tokens=BLANKS, plan=sampling_plan(even_times(100), Threshold(fill=1.0)))
    slow = Session(network, SCHEDULE)
    with pytest.raises(ConfigError, match="no"):
        run_job(lambda jobs: gather([jobs.sample(slow, [long], record_frames=True), fails(jobs)]))
    assert network.forward_passes < 10


def test_events_go_to_those_who_asked():
    session = Session(MODEL, SCHEDULE, batch_size=2)
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    def watch(name: str):
        return lambda events: seen[name].update(e.ticket.request.sample_index for e in events)

    async def job(jobs: Jobs, name: str, index: int) -> None:
        await jobs.sample(session, [request(index)], on_step=watch(name))
        await jobs.sample(session, [request(9)])

    run_job(lambda jobs: gather([job(jobs, "a", 0), job(jobs, "b", 1)]))
    assert seen == {"a": {0}, "b": {1}}


def test_blocks_are_sampled_from_left_to_right():
    session, parts, tokens = Session(MODEL, SCHEDULE), [], ()
    given = prompt(11, (1, 2))
    sample = run_job(lambda jobs: sample_blocks(jobs, session, request(0, given), 4))
    assert sample.tokens == sample.text and sample.tokens[:2] == (1, 2)
    while (block := next_block(request(0, given), tokens, 4)) is not None:
        parts.append(block)
        tokens = session.sample([block])[0].tokens
    assert [len(part.tokens) for part in parts] == [6, 10, 11]
    assert tokens == sample.tokens
    assert sample.forward_passes == 4 + 4 + 1 and len(sample.tokens) == 11
    # a block is what a request for it alone gives, with what is before it
    (again,) = session.sample([request(0, prompt(10, sample.tokens[:6]))])
    assert again.tokens == sample.tokens[:10]
    tokens = [16] * 11
    tokens[:2] = 1, 2
    for edit in sample.edits:
        assert tokens[edit.position] == edit.old
        tokens[edit.position] = edit.new
    assert tuple(tokens) == sample.tokens
    assert [edit.step_index for edit in sample.edits] == sorted(e.step_index for e in sample.edits)


def test_no_block_follows_a_stop_token():
    session = Session(MODEL, SCHEDULE)
    whole = run_job(lambda jobs: sample_blocks(jobs, session, request(0, blanks(12)), 3))
    stop = whole.tokens[4]
    first = whole.tokens.index(stop)
    stopped = Request(tokens=blanks(12), plan=PLAN, stop=(stop,))
    sample = run_job(lambda jobs: sample_blocks(jobs, session, stopped, 3))
    assert sample.text == whole.tokens[:first]
    assert len(sample.tokens) == 3 * (first // 3 + 1) < 12
    assert torch.tensor(sample.protected).logical_not().all()


def test_many_block_wise_samples_share_forward_passes():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE, batch_size=4, pad_to_multiple_of=16, max_length=32)

    async def blocks(jobs: Jobs) -> list[tuple[int, ...]]:
        coroutines = (sample_blocks(jobs, session, request(i, blanks(8)), 4) for i in range(4))
        return [sample.tokens for sample in await gather(coroutines)]

    together = run_job(blocks)
    assert network.forward_passes == 8
    one = run_job(lambda jobs: sample_blocks(jobs, session, request(2, blanks(8)), 4))
    assert one.tokens == together[2]


def test_tokens_that_may_change_are_not_sampled_in_blocks():
    session = Session(MODEL, SCHEDULE)
    wrong = Request(tokens=(1, 2), plan=PLAN, protected=(False, False))
    with pytest.raises(ConfigError, match=r"request.protected must be None for block-wise"):
        run_job(lambda jobs: sample_blocks(jobs, session, wrong, 4))


@contextmanager
def stepped(pool: SessionPool):
    """A pool whose sessions another thread steps."""
    stop = threading.Event()

    def step() -> None:
        while not stop.is_set():
            for own in pool.pending:
                own.step()
            time.sleep(0.0005)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        yield pool
    finally:
        stop.set()
        thread.join()


def test_threads_that_share_a_pool_have_the_samples_they_have_alone():
    session = Session(MODEL, SCHEDULE, batch_size=2)

    async def two(jobs: Jobs, index: int):
        return [await jobs.sample(session, [request(index + k)]) for k in range(2)]

    def run(index: int):
        with sharing(Jobs(pool)):
            return run_job(partial(two, index=index))

    expected = [run_job(partial(two, index=index)) for index in range(6)]
    with stepped(SessionPool()) as pool, ThreadPoolExecutor(6) as threads:
        assert list(threads.map(run, range(6))) == expected
        (own,) = pool.sessions
        assert own.counters.finished == 12


def test_jobs_that_are_cancelled_or_late_end_at_once():
    session = Session(MODEL, SCHEDULE)
    endless = replace(request(0), plan=sampling_plan(even_times(100_000)))

    def run(jobs: Jobs):
        with sharing(jobs):
            return run_job(partial(Jobs.sample, session=session, requests=[endless]))

    with stepped(SessionPool()) as pool, ThreadPoolExecutor(2) as threads:
        cancelled, late = Jobs(pool), Jobs(pool, seconds=0.01)
        futures = [threads.submit(run, jobs) for jobs in (cancelled, late)]
        with pytest.raises(LimitReached):
            futures[1].result()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            futures[0].result()
        with pytest.raises(asyncio.CancelledError):  # and begins nothing else
            run(cancelled)
        assert not pool.pending
