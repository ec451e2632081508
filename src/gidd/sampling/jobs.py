"""Jobs: coroutines that sample, evaluate the samples, and sample again.

    async def job(jobs: Jobs) -> Sample:
        (draft,) = await jobs.sample(session, [request])
        (final,) = await jobs.sample(session, [correction_of(draft)])
        return final

    jobs = Jobs()
    tasks = [jobs.start(job(jobs)) for _ in range(8)]
    while jobs.pending:
        jobs.step()
    results = [task.result() for task in tasks]

Jobs that run at the same time share sessions, and so forward passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, final

from gidd.errors import ConfigError, GiddError
from gidd.sampling.request import Edit, Limits, Request, Sample
from gidd.sampling.session import OnStep, Session
from gidd.sampling.ticket import Event, Ticket

_T = TypeVar("_T")

JOBS_AT_ONCE: Final = 64
"""Jobs in progress: enough to fill forward passes; the others have not begun."""

OnTokens = Callable[[tuple[int, ...]], None]
"""Called with the tokens of a finished block, and the given tokens before it."""

_NO_LIMITS = Limits()


@final
class _Samples:
    """What a job waits for: the samples of some requests."""

    def __init__(self, session: Session, tickets: list[Ticket]) -> None:
        self.session, self.tickets = session, tickets

    def __await__(self) -> Generator[_Samples, None, list[Sample]]:
        yield self
        return [ticket.sample for ticket in self.tickets if ticket.sample is not None]

    @property
    def error(self) -> Exception | None:
        """Why the first request that failed did so."""
        return next((ticket.error for ticket in self.tickets if ticket.error is not None), None)

    @property
    def is_done(self) -> bool:
        """Whether the job can continue: with all samples, or with an error."""
        return self.error is not None or all(ticket.is_done for ticket in self.tickets)

    def cancel(self) -> None:
        """End the requests that are not done."""
        for ticket in self.tickets:
            if not ticket.is_done:
                self.session.cancel(ticket)


@final
class StartedJob(Generic[_T]):
    """A job that was started."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._waits: _Samples | StartedJob[Any] | None = None
        self._result: list[_T] = []
        self.error: BaseException | None = None
        """Why it failed, if it did."""
        self.is_cancelled = False

    def __await__(self) -> Generator[StartedJob[_T], None, _T]:
        yield self
        return self.result()

    @property
    def is_done(self) -> bool:
        """Whether it has ended: with a result, with an error, or cancelled."""
        return self.is_cancelled or self.error is not None or bool(self._result)

    def result(self) -> _T:
        """Return the result of a job that has ended; raise its error if it failed."""
        if self.error is not None:
            raise self.error
        if not self._result:
            raise GiddError("the job was cancelled and has no result.")
        return self._result[0]

    def cancel(self) -> None:
        """End the job and its requests."""
        self.is_cancelled = True
        if self._waits is not None:
            self._waits.cancel()
        self._coroutine.close()

    def go_on(self) -> None:
        """Run the job up to the next samples that are not there yet."""
        while not self.is_done and (self._waits is None or self._waits.is_done):
            error = None if self._waits is None else self._waits.error
            try:
                if self._waits is not None and error is not None:
                    self._waits.cancel()
                    self._waits = self._coroutine.throw(error)
                else:
                    self._waits = self._coroutine.send(None)
            except StopIteration as stop:
                self._result.append(stop.value)
            except Exception as failure:
                self.error = failure


@final
class Jobs:
    """Jobs in progress, and a session for each network that they use."""

    def __init__(self) -> None:
        self._sessions: dict[Session, Session] = {}
        self._started: list[StartedJob[Any]] = []
        self._watched: dict[Ticket, OnStep] = {}

    @property
    def pending(self) -> int:
        """Number of jobs that have not ended."""
        return sum(not job.is_done for job in self._started)

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> StartedJob[_T]:
        """Start a job: it runs up to the first samples it waits for."""
        started = StartedJob(coroutine)
        self._started.append(started)
        started.go_on()
        return started

    def step(self) -> None:
        """Make one step of each session, and continue the jobs whose samples are complete."""
        for session in self._sessions.values():
            self._report(session.step())
        for job in reversed(self._started):  # a job starts before the jobs that it awaits
            job.go_on()
        self._started = [job for job in self._started if not job.is_done]

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
        if session not in self._sessions:
            self._sessions[session] = session.new()
        shared = self._sessions[session]
        found = _Samples(shared, [])
        try:
            for request in requests:
                ticket = shared.submit(request, limits, record_frames=record_frames)
                found.tickets.append(ticket)
        except Exception:
            found.cancel()
            raise
        if on_step is not None:
            self._watched |= dict.fromkeys(found.tickets, on_step)
        return await found

    async def gather(self, coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
        """Run several jobs at once; the first that fails raises, and ends the others."""
        started = [self.start(coroutine) for coroutine in coroutines]
        try:
            return [await job for job in started]
        finally:
            for job in started:
                if not job.is_done:
                    job.cancel()

    def _report(self, events: Sequence[Event]) -> None:
        """Call each `on_step` with its events."""
        by_callback: dict[OnStep, list[Event]] = {}
        for event in events:
            if (on_step := self._watched.get(event.ticket)) is not None:
                by_callback.setdefault(on_step, []).append(event)
                if event.ticket.is_done:
                    del self._watched[event.ticket]
        if len(self._watched) > sum(session.pending for session in self._sessions.values()):
            self._watched = {t: f for t, f in self._watched.items() if not t.is_done}  # cancelled
        for on_step, own in by_callback.items():
            on_step(own)


def run_job(job: Callable[[Jobs], Coroutine[Any, Any, _T]]) -> _T:
    """Run one job to its end."""
    return run_jobs([job])[0]


def run_jobs(
    functions: Iterable[Callable[[Jobs], Coroutine[Any, Any, _T]]], at_once: int = JOBS_AT_ONCE
) -> list[_T]:
    """Run jobs to their ends, several at once; return their results in order.

    The first that fails raises its error, and ends those that were not done.
    """
    jobs, waiting = Jobs(), deque(functions)
    started: list[StartedJob[_T]] = []
    running: list[StartedJob[_T]] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                started.append(jobs.start(waiting.popleft()(jobs)))
                running.append(started[-1])
                _raise_errors(started[-1:])
            jobs.step()
            _raise_errors(running)
            running = [job for job in running if not job.is_done]
    finally:
        for job in running:
            job.cancel()
    return [job.result() for job in started]


def _raise_errors(jobs: Iterable[StartedJob[Any]]) -> None:
    for job in jobs:
        if job.error is not None:
            raise job.error


async def sample_blocks(
    jobs: Jobs,
    session: Session,
    request: Request,
    block_length: int,
    *,
    on_step: OnStep | None = None,
    on_tokens: OnTokens | None = None,
    is_end: Callable[[tuple[int, ...]], bool] | None = None,
) -> Sample:
    """Sample the blanks of a request in blocks, left to right, each with all steps of its plan.

    A finished block does not change. A block is conditioned on the tokens to its left only. After a
    stop token, or tokens for which `is_end` is true, no other block is sampled, and the sequence is
    shorter than requested.
    """
    if request.protected is not None:
        raise ConfigError(
            "request.protected must be None for block-wise sampling, which keeps given tokens. "
            "Use a corrector for tokens that were given."
        )
    if request.choices:
        raise ConfigError("request.choices must be () for block-wise sampling.")
    blank = [i for i, token in enumerate(request.tokens) if token is None]
    tokens: tuple[int, ...] = ()
    text, edits, forward_passes, num_steps = tokens, list[Edit](), 0, 0
    while len(tokens) < len(request.tokens) and len(text) == len(tokens):
        start = next((i for i in blank if i >= len(tokens)), len(request.tokens))
        end = min(start + block_length, len(request.tokens))
        part = request.first(end)
        given = replace(part, tokens=(*tokens, *request.tokens[len(tokens) : end]))
        (sample,) = await jobs.sample(session, [given], on_step=on_step)
        edits += [edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits]
        forward_passes, num_steps, done = (
            forward_passes + sample.forward_passes,
            num_steps + len(request.plan),
            len(text),
        )
        tokens, text = sample.tokens, part.truncate_at_stop(sample.tokens)
        if on_tokens is not None:
            on_tokens(text[done:])
        if is_end is not None and is_end(text):
            break
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, forward_passes, tuple(edits))
