"""Jobs: coroutines that await samples; those that wait at the same time share forward passes.

    async def correct_draft(jobs: Jobs) -> Sample:
        (draft,) = await jobs.sample(session, [request])
        (final,) = await jobs.sample(session, [correction_of(draft)])
        return final

    finals = run_jobs([correct_draft] * 8)

They are ordinary coroutines of `asyncio`, which may await anything else as well.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Final, TypeVar

from gidd.errors import ConfigError
from gidd.sampling.request import Edit, Limits, Request, Sample
from gidd.sampling.session import OnStep, Session
from gidd.sampling.ticket import Event, Ticket

_T = TypeVar("_T")

JOBS_AT_ONCE: Final = 64
"""Jobs in progress: enough to fill forward passes; the others have not begun."""

_TURNS = 8
"""Turns of the event loop between two steps: jobs go on to the next samples that they await."""

_NO_LIMITS = Limits()


class _Call:
    """A call of `Jobs.sample`: its requests, and the future that it awaits."""

    def __init__(self, number: int, on_step: OnStep | None) -> None:
        self._left, self._on_step = number, on_step
        self.future: Future[None] = Future()

    def report(self, events: Sequence[Event]) -> None:
        """Take the events of one step; called by the thread that steps."""
        error = next((event.error for event in events if event.error is not None), None)
        self._left -= sum(event.sample is not None for event in events)
        if self._on_step is not None:
            try:
                self._on_step(events)
            except Exception as failure:
                error = error or failure
        with suppress(InvalidStateError):  # it has failed or was cancelled before
            if error is not None:
                self.future.set_exception(error)
            elif not self._left:
                self.future.set_result(None)


class SessionPool:
    """Sessions that jobs share, one for each network that they use.

    Jobs submit requests from any thread, and one thread steps the sessions that are `pending`.
    """

    def __init__(self, **settings: Any) -> None:
        """Start without sessions; `settings` are arguments of each, e.g. `max_cost=10**6`."""
        self._settings = settings
        self._sessions: dict[Session, Session] = {}
        self._lock = Lock()
        self.has_work = threading.Event()
        """Set when requests are submitted; the thread that steps may clear it and wait for it."""

    @property
    def sessions(self) -> list[Session]:
        """All sessions."""
        return list(self._sessions.values())

    @property
    def pending(self) -> list[Session]:
        """Sessions with requests that are not done."""
        return [session for session in self.sessions if session.pending]

    def session_like(self, session: Session) -> Session:
        """Return the session that shares the forward passes of this one's network."""
        with self._lock:
            if session not in self._sessions:
                self._sessions[session] = session.new(**self._settings)
            return self._sessions[session]


class Jobs:
    """What jobs sample with. All that is awaited with one of these ends if it is cancelled."""

    def __init__(
        self,
        pool: SessionPool | None = None,
        *,
        seconds: float | None = None,
        record_edits: bool = True,
    ) -> None:
        """Start without samples.

        Args:
            pool: Sessions that another thread steps; by default new ones, that `run_jobs` steps.
            seconds: From now on; what is not sampled by then raises `LimitReached`.
            record_edits: Whether samples have edits.
        """
        self.pool = SessionPool() if pool is None else pool
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._record_edits = record_edits
        self.cost = 0
        """Cost of all requests so far, see `Session.cost`."""
        self._open: set[_Call] = set()
        self._is_cancelled = False
        self._lock = Lock()

    async def sample(
        self,
        session: Session,
        requests: Sequence[Request],
        limits: Limits = _NO_LIMITS,
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Sample]:
        """Sample requests; the first that fails raises, and ends those that were not done.

        All jobs with the same session share a new one like it. `on_step` is called with the events
        of these requests.
        """
        if not requests:
            return []
        call, tickets = _Call(len(requests), on_step), list[Ticket]()
        shared = self.pool.session_like(session)
        with self._lock:
            self._open.add(call)
            if self._is_cancelled:
                raise asyncio.CancelledError
        limits = self._until_deadline(limits)
        try:
            for request in requests:
                ticket = shared.submit(
                    request,
                    limits,
                    record_frames=record_frames,
                    record_edits=self._record_edits,
                    on_step=call.report,
                )
                tickets.append(ticket)
                self.cost += ticket.cost
            self.pool.has_work.set()
            await asyncio.wrap_future(call.future)
        finally:
            self._open.discard(call)
            for ticket in tickets:
                shared.cancel(ticket)
        return [ticket.sample for ticket in tickets if ticket.sample is not None]

    def cancel(self) -> None:
        """End all that is awaited, from any thread, with `asyncio.CancelledError`."""
        with self._lock:
            self._is_cancelled = True
            calls = list(self._open)
        for call in calls:
            call.future.cancel()

    def _until_deadline(self, limits: Limits) -> Limits:
        if self._deadline is None:
            return limits
        left = max(0.0, self._deadline - time.monotonic())
        seconds = left if limits.seconds is None else min(left, limits.seconds)
        return replace(limits, seconds=seconds, on_limit="abort")


_SHARED: contextvars.ContextVar[Jobs | None] = contextvars.ContextVar("shared jobs", default=None)


@contextmanager
def sharing(jobs: Jobs) -> Generator[None]:
    """Within it, what `run_jobs` runs in this thread samples with `jobs`, in sessions of its pool.

    Another thread steps these sessions.
    """
    token = _SHARED.set(jobs)
    try:
        yield
    finally:
        _SHARED.reset(token)


async def gather(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run several jobs at once; the first that fails raises at once, and ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def run_job(job: Callable[[Jobs], Coroutine[Any, Any, _T]]) -> _T:
    """Run one job to its end."""
    return run_jobs([job])[0]


def run_jobs(
    functions: Iterable[Callable[[Jobs], Coroutine[Any, Any, _T]]], at_once: int = JOBS_AT_ONCE
) -> list[_T]:
    """Run jobs to their ends, several at once; return their results in order.

    The first that fails raises its error, and ends those that were not done.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        with ThreadPoolExecutor(1) as thread:  # in a notebook, whose own loop runs in this one
            context = contextvars.copy_context()
            return thread.submit(context.run, asyncio.run, _run_all(functions, at_once)).result()
    return asyncio.run(_run_all(functions, at_once))


async def _run_all(
    functions: Iterable[Callable[[Jobs], Coroutine[Any, Any, _T]]], at_once: int
) -> list[_T]:
    shared = _SHARED.get()
    jobs, free, has_failed = shared or Jobs(), asyncio.Semaphore(at_once), asyncio.Event()

    async def run(function: Callable[[Jobs], Coroutine[Any, Any, _T]]) -> _T:
        async with free:
            if has_failed.is_set():  # no other job begins
                raise asyncio.CancelledError
            try:
                return await function(jobs)
            except BaseException:
                has_failed.set()
                raise

    results = asyncio.ensure_future(gather(run(function) for function in functions))
    if shared is not None:  # another thread steps its sessions
        return await results
    try:
        while not results.done():
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            pending = jobs.pool.pending
            for session in pending:
                session.step()
            if not pending:  # jobs wait for something else
                await asyncio.wait([results], timeout=0.001)
        return results.result()
    finally:
        results.cancel()


def next_block(request: Request, tokens: tuple[int, ...], block_length: int) -> Request | None:
    """Return the request of the block after the finished `tokens`; None if all are finished.

    Each block has all steps of the plan. A finished block does not change, and a block is
    conditioned on the tokens to its left only.
    """
    if request.protected is not None:
        raise ConfigError(
            "request.protected must be None for block-wise sampling, which keeps given tokens. "
            "Use a corrector for tokens that were given."
        )
    if request.choices:
        raise ConfigError("request.choices must be () for block-wise sampling.")
    done, length = len(tokens), len(request.tokens)
    if done == length:
        return None
    start = next((i for i in range(done, length) if request.tokens[i] is None), length)
    part = request.first(min(start + block_length, length))
    return replace(part, tokens=(*tokens, *part.tokens[done:]))


async def sample_blocks(
    jobs: Jobs,
    session: Session,
    request: Request,
    block_length: int,
    on_step: OnStep | None = None,
    is_end: Callable[[tuple[int, ...]], bool] | None = None,
) -> Sample:
    """Sample the blanks of a request in blocks, from left to right (see `next_block`).

    After a stop token, or tokens for which `is_end` is true, there is no other block, and the
    sequence is shorter than requested.
    """
    tokens, text, edits, forward_passes, num_steps = (), (), list[Edit](), 0, 0
    while (block := next_block(request, tokens, block_length)) is not None:
        (sample,) = await jobs.sample(session, [block], on_step=on_step)
        edits += [edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits]
        forward_passes += sample.forward_passes
        num_steps += len(request.plan)
        tokens, text = sample.tokens, sample.text
        if len(text) < len(tokens) or (is_end is not None and is_end(text)):
            break
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, forward_passes, tuple(edits))
