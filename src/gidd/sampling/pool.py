"""Sessions that jobs of several threads share, and forward passes beside their steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from gidd.errors import LimitReached
from gidd.sampling.session import Session, SessionCounters

if TYPE_CHECKING:
    from gidd.sampling.jobs import Jobs


@dataclass(frozen=True, eq=False)
class _ForwardPass:
    """A function that makes a forward pass of `cost` tokens, and the future that awaits it."""

    jobs: Jobs
    function: Callable[[], Any]
    cost: int
    future: Future[Any]

    def is_open(self) -> bool:
        """Whether somebody waits for it; ends it if its jobs are cancelled or late."""
        try:
            self.jobs.check()
        except (LimitReached, asyncio.CancelledError) as error:
            with suppress(InvalidStateError):
                self.future.set_exception(error)
        return not self.future.done()

    def run(self) -> None:
        """Call the function, and report its result or its error."""
        try:
            self.future.set_result(self.function())
        except SystemExit as error:
            failure = RuntimeError(f"a forward pass ended with sys.exit({error.code}).")
            self.future.set_exception(failure)
        except Exception as error:
            self.future.set_exception(error)


class PassQueue:
    """Forward passes that are no denoising steps, such as those of likelihoods.

    Every other one is for the jobs that have computed least, the others for the oldest jobs: a
    short text does not wait for long ones, and none starves.
    """

    def __init__(self) -> None:
        self._waiting: list[_ForwardPass] = []
        self._lock = Lock()
        self._is_for_oldest = False
        self.counters = SessionCounters()

    @property
    def pending(self) -> int:
        """Number of forward passes that wait; each thread waits for one of its own."""
        return len(self._waiting)

    waiting = pending

    @property
    def expected_wait(self) -> float:
        """Seconds until what these jobs have reserved is computed, at the speed so far."""
        left = sum(jobs.cost - jobs.computed for jobs in {one.jobs for one in self._waiting})
        return left * self.counters.seconds / self.counters.work if self.counters.work else 0.0

    def submit(self, forward_pass: _ForwardPass) -> None:
        """Let a forward pass wait for its turn."""
        with self._lock:
            self._waiting.append(forward_pass)

    def step(self) -> None:
        """Make one forward pass; those whose jobs are cancelled or late end without."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.is_open()]
            if not self._waiting:
                return
            if self._is_for_oldest:
                chosen = min(self._waiting, key=lambda one: one.jobs.start)
            else:
                chosen = min(self._waiting, key=lambda one: one.jobs.computed)
            self._waiting.remove(chosen)
        self._is_for_oldest = not self._is_for_oldest
        if not chosen.future.set_running_or_notify_cancel():
            return
        start = time.perf_counter()
        chosen.jobs.computed += chosen.cost
        chosen.run()
        self.counters.steps += 1
        self.counters.work += chosen.cost
        self.counters.seconds += time.perf_counter() - start


class SessionPool:
    """Sessions that jobs share, one for each network and shape, and other forward passes.

    Jobs submit requests from any thread, and one thread makes the steps of `next_steps`.
    """

    def __init__(self, **settings: Any) -> None:
        """Start without sessions; `settings` are arguments of each, e.g. `row_buckets=(1, 4)`."""
        self._settings = settings
        self._sessions: dict[tuple[Any, ...], Session] = {}
        self._lock = Lock()
        self._balance = 0
        """Tokens of other passes less those of steps, when only one of them had work."""
        self.clock: Callable[[], float] = settings.get("clock", time.monotonic)
        self.passes = PassQueue()
        self.has_work = Event()
        """Set when work is submitted; the thread that steps may clear it and wait for it."""

    @property
    def sessions(self) -> list[Session]:
        """All sessions."""
        return list(self._sessions.values())

    @property
    def sources(self) -> list[Session | PassQueue]:
        """All that make forward passes."""
        return [*self.sessions, self.passes]

    @property
    def pending(self) -> list[Session]:
        """Sessions with requests that are not done."""
        return [session for session in self.sessions if session.pending]

    def next_steps(self) -> list[Session] | list[PassQueue]:
        """Return what to step now: sessions with requests, or the other forward passes.

        If both have work, each gets half of it.
        """
        sessions = self.pending
        steps = sum(session.counters.work for session in self.sessions)
        balance = self.passes.counters.work - steps
        if sessions and self.passes.pending:
            return [self.passes] if balance <= self._balance else sessions
        self._balance = balance
        return sessions or [self.passes] * bool(self.passes.pending)

    def session_like(self, session: Session) -> Session:
        """Return the session that shares forward passes with others of this network and shape."""
        key = id(session.network), id(session.schedule), *session.settings.values()
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = session.new(**self._settings)
            return self._sessions[key]

    def submit(self, jobs: Jobs, function: Callable[[], Any], cost: int, future: Any) -> None:
        """Let the thread that steps call a function that makes a forward pass."""
        self.passes.submit(_ForwardPass(jobs, function, cost, future))
        self.has_work.set()
