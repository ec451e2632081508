"""A worker: calls of one model, each in a thread of its own, that share forward passes."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gidd.errors import GiddError, Overloaded
from gidd.pipeline import Pipeline
from gidd.sampling import Jobs, SessionPool, sharing
from gidd.serving.options import WorkerOptions

_T = TypeVar("_T")
_log = logging.getLogger("gidd.serving")


class Cancelled(GiddError):
    """The client is gone, so the call was ended."""


class Worker:
    """Runs calls of a pipeline; one thread makes the forward passes of all of them.

        worker = Worker(pipe)
        generations = await worker.call(lambda: pipe.generate(prompt="Peace", seed=1))

    The results are those of the pipeline, bit for bit. A step that fails ends its own call only.
    """

    def __init__(self, pipe: Pipeline, options: WorkerOptions | None = None) -> None:
        self.pipe, self.options = pipe, options or WorkerOptions()
        self.options.check()
        row_buckets = self.options.row_buckets or pipe.session.row_buckets
        self.pool = SessionPool(max_cost=self.options.max_cost, row_buckets=row_buckets)
        self.pool.session_like(pipe.session)
        self.num_open = 0
        """Calls that have begun and not ended."""
        self.num_refused = 0
        self.alone = threading.Lock()
        """Held by calls with forward passes of their own, such as `Pipeline.score`."""
        self._threads = ThreadPoolExecutor(self.options.max_requests, "gidd-call")
        self._is_closed = False
        self._steps = threading.Thread(target=self._step_forever, name="gidd-steps", daemon=True)
        self._steps.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._steps.is_alive()

    @property
    def is_full(self) -> bool:
        """Whether a further call would be refused."""
        return self.num_open >= self.options.max_requests

    @property
    def expected_wait(self) -> float:
        """Seconds until all open calls are done, at the speed so far."""
        return sum(session.expected_wait for session in self.pool.sessions)

    def require_room(self, number: int = 1) -> None:
        """Raise `Overloaded` if this many further calls are too many."""
        if self.num_open + number > self.options.max_requests:
            self.num_refused += 1
            # a place is free when one of the open calls is done
            seconds = max(1.0, self.expected_wait / max(1, self.num_open))
            raise Overloaded(
                f"{self.num_open} requests are open, at most {self.options.max_requests} may be. "
                f"Try again in {seconds:.0f} seconds.",
                seconds,
            )

    async def call(
        self,
        function: Callable[[], _T],
        *,
        charge: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> _T:
        """Call a function of the pipeline in a thread; refuse if too many calls are open.

        If this is cancelled, the samples it waits for are. `charge` is called with the cost of the
        call when it is done, and `settings` are arguments of `Jobs`.
        """
        self.require_room()
        jobs = Jobs(self.pool, **(dict[str, Any](seconds=self.options.seconds) | settings))
        self.num_open += 1
        try:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, partial(_run, jobs, function))
            running.add_done_callback(self._close_call)
        except BaseException:
            self.num_open -= 1
            raise
        try:
            return await asyncio.shield(running)
        finally:
            jobs.cancel()
            if charge is not None:
                charge(jobs.cost)

    def _close_call(self, running: asyncio.Future[Any]) -> None:
        self.num_open -= 1
        if not running.cancelled():
            running.exception()  # it is retrieved, though nobody may wait for it

    async def stream(
        self, function: Callable[[Callable[[_T], None]], object], **settings: Any
    ) -> AsyncGenerator[_T]:
        """Call a function that emits items; yield them. For the arguments see `call`.

        The newest item replaces one that was not taken yet if it has a method `after(item)`, which
        returns what replaces both.
        """
        loop, is_ready, items = asyncio.get_running_loop(), asyncio.Event(), list[_T]()

        def add(item: Any) -> None:
            if items and hasattr(item, "after"):
                item = item.after(items.pop())
            items.append(item)
            is_ready.set()

        def emit(item: _T) -> None:
            loop.call_soon_threadsafe(add, item)

        running = asyncio.ensure_future(self.call(partial(function, emit), **settings))
        running.add_done_callback(lambda _: is_ready.set())
        try:
            while items or not running.done():
                await is_ready.wait()
                is_ready.clear()
                while items:
                    yield items.pop(0)
            await running
        finally:
            running.cancel()

    def close(self) -> None:
        """End the thread; calls that are open fail."""
        self._is_closed = True
        self.pool.has_work.set()
        self._steps.join(timeout=10)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _step_forever(self) -> None:
        while not self._is_closed:
            self.pool.has_work.clear()
            pending = self.pool.pending
            for session in pending:
                try:
                    session.step()
                except Exception:  # a session ends its requests itself, so this is a defect
                    _log.exception("a step failed")
            if not pending:
                self.pool.has_work.wait()


def _run(jobs: Jobs, function: Callable[[], _T]) -> _T:
    with sharing(jobs):
        try:
            return function()
        except asyncio.CancelledError as error:
            raise Cancelled("the request was cancelled.") from error
