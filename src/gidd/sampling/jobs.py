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
import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import RLock
from typing import Any, Final, TypeVar

from gidd.errors import ConfigError, LimitReached
from gidd.sampling.pool import SessionPool
from gidd.sampling.request import Edit, Limits, Request, Sample
from gidd.sampling.session import OnStep, Session
from gidd.sampling.ticket import Event

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


class Jobs:
    """What jobs compute with. All that is awaited with one of these ends if it is cancelled."""

    def __init__(
        self,
        pool: SessionPool | None = None,
        *,
        seconds: float | None = None,
        max_cost: int | None = None,
        charge: Callable[[int], None] | None = None,
        record_edits: bool = True,
    ) -> None:
        """Start without samples.

        Args:
            pool: Sessions that another thread steps; by default new ones, that `run_jobs` steps.
            seconds: From now on; what is not done by then raises `LimitReached`.
            max_cost: The largest cost of all work together; further work raises `ConfigError`.
            charge: Called with the cost of work before it is made, which it may refuse by raising,
                and with a negative number for work that was not made (`settle`).
            record_edits: Whether samples have edits.
        """
        self._is_alone = pool is None
        self.pool = SessionPool() if pool is None else pool
        self.start = self.pool.clock()
        self._seconds, self._max_cost, self._charge = seconds, max_cost, charge
        self._record_edits = record_edits
        self.cost = 0
        """Tokens of all forward passes that were reserved, see `Session.cost`."""
        self.computed = 0
        """Tokens of the forward passes that were made."""
        self._unused = 0
        """Reserved for work that has not begun."""
        self._open: set[Future[Any]] = set()
        self._is_cancelled = False
        self._lock = RLock()

    @property
    def seconds_left(self) -> float:
        """Seconds until the time is over."""
        if self._seconds is None:
            return math.inf
        return max(0.0, self.start + self._seconds - self.pool.clock())

    def check(self) -> None:
        """Raise if all that is awaited was cancelled, or the time is over."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if not self.seconds_left:
            raise LimitReached(f"the call must be finished within {self._seconds:g} seconds.")

    def reserve(self, cost: int) -> None:
        """Reserve work to come, in tokens of forward passes; raise if it is too much.

        Samples and other forward passes use what is reserved, and reserve what is missing: call it
        where the cost of several of them is known before the first.
        """
        with self._lock:
            if self._max_cost is not None and self.cost + cost > self._max_cost:
                raise ConfigError(
                    f"a call must cost at most {self._max_cost:,} (steps times tokens, of all "
                    f"samples), got {self.cost + cost:,}. Use fewer steps or samples, or a shorter "
                    "text."
                )
            if self._charge is not None:
                self._charge(cost)
            self.cost += cost
            self._unused += cost

    def _use(self, cost: int) -> None:
        with self._lock:
            if cost > self._unused:
                self.reserve(cost - self._unused)
            self._unused -= cost

    def settle(self) -> None:
        """Give back what was reserved and not computed; nothing else may be computed then."""
        with self._lock:
            if self._charge is not None:
                self._charge(self.computed - self.cost)
            self.cost = self.computed

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

        All jobs with sessions of one network and shape share a new one. `on_step` is called with
        the events of these requests.
        """
        if not requests:
            return []
        self.check()
        call, shared = _Call(len(requests), on_step), self.pool.session_like(session)
        if self._seconds is not None:
            seconds = min(self.seconds_left, math.inf if limits.seconds is None else limits.seconds)
            limits = replace(limits, seconds=seconds, on_limit="abort")
        options: dict[str, Any] = {"record_frames": record_frames, "on_step": call.report}
        options["record_edits"] = self._record_edits
        tickets = [shared.prepare(request, limits, **options) for request in requests]
        self._use(sum(ticket.cost for ticket in tickets))

        def end(_: object = None) -> None:
            for ticket in tickets:
                shared.cancel(ticket)

        try:
            with self._until_cancelled(call.future):
                for ticket in tickets:
                    shared.enqueue(ticket)
                call.future.add_done_callback(end)  # at once, not when this thread wakes up
                self.pool.has_work.set()
                await asyncio.wrap_future(call.future)
        finally:
            end()
            with self._lock:
                self.computed += sum(ticket.computed for ticket in tickets)
        return [ticket.sample for ticket in tickets if ticket.sample is not None]

    def compute(self, function: Callable[[], _T], cost: int) -> _T:
        """Return the result of a function that makes one forward pass, of `cost` tokens.

        The thread that steps the sessions calls it between two steps, and this one waits. Without
        such a thread it is called here.
        """
        self.check()
        self._use(cost)
        if self._is_alone:
            self.computed += cost
            return function()
        future: Future[_T] = Future()
        with self._until_cancelled(future):
            self.pool.submit(self, function, cost, future)
            try:
                return future.result()
            except CancelledError as error:
                raise asyncio.CancelledError from error

    @contextmanager
    def _until_cancelled(self, future: Future[Any]) -> Generator[None]:
        """Let `cancel` cancel a future."""
        with self._lock:
            self._open.add(future)
            if self._is_cancelled:
                future.cancel()
        try:
            yield
        finally:
            self._open.discard(future)

    def cancel(self) -> None:
        """End all that is awaited, from any thread, with `asyncio.CancelledError`."""
        with self._lock:
            self._is_cancelled = True
            futures = list(self._open)
        for future in futures:
            future.cancel()


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


def shared_jobs() -> Jobs:
    """Return the jobs that this thread samples with (`sharing`), or new ones without limits."""
    return _SHARED.get() or Jobs()


def compute(function: Callable[[], _T], cost: int) -> _T:
    """Call a function that makes one forward pass, within the limits of `sharing`."""
    return shared_jobs().compute(function, cost)


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
    done = len(tokens)
    if done == len(request.tokens):
        return None
    part = request.first(_block_end(request, done, block_length))
    return replace(part, tokens=(*tokens, *part.tokens[done:]))


def _block_end(request: Request, done: int, block_length: int) -> int:
    length = len(request.tokens)
    start = next((i for i in range(done, length) if request.tokens[i] is None), length)
    return min(start + block_length, length)


def blocks_of(request: Request, block_length: int) -> list[Request]:
    """Return the requests of all blocks, with blanks in place of the tokens of those before."""
    blocks, done = list[Request](), 0
    while done < len(request.tokens):
        done = _block_end(request, done, block_length)
        blocks.append(request.first(done))
    return blocks


def cost_of_blocks(session: Session, request: Request, block_length: int) -> int:
    """Return the cost of all blocks of a request, if none of them ends it early."""
    return sum(map(session.cost, blocks_of(request, block_length)))


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
    sequence is shorter than requested. The steps of all blocks are counted together.
    """
    tokens, text, edits, forward_passes, num_steps = (), (), list[Edit](), 0, 0
    total = len(request.plan) * len(blocks_of(request, block_length))

    def report(events: Sequence[Event]) -> None:
        assert on_step is not None
        on_step([e._replace(steps_done=num_steps + e.steps_done, num_steps=total) for e in events])

    while (block := next_block(request, tokens, block_length)) is not None:
        (sample,) = await jobs.sample(session, [block], on_step=on_step and report)
        edits += [edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits]
        forward_passes += sample.forward_passes
        num_steps += len(request.plan)
        tokens, text = sample.tokens, sample.text
        if len(text) < len(tokens) or (is_end is not None and is_end(text)):
            break
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, forward_passes, tuple(edits))
