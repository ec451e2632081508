"""A worker: calls of one model, each in a thread of its own, and how many may be open."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from gidd.common.config.allowed import require_allowed
from gidd.errors import GiddError, Overloaded
from gidd.pipeline import Pipeline
from gidd.sampling import Budget, Session
from gidd.serving.options import WorkerOptions

_T = TypeVar("_T")


class Cancelled(GiddError):
    """The client is gone, so the call was ended."""


class Worker:
    """Runs calls of a pipeline within limits; its session makes the forward passes of all of them.

        worker = Worker(pipe)
        generations = await worker.call(lambda: pipe.generate(prompt="Peace", seed=1))

    The results are those of the pipeline, bit for bit. A step that fails ends its own call only.
    """

    def __init__(self, pipe: Pipeline, options: WorkerOptions | None = None) -> None:
        self.pipe, self.options = pipe, options or WorkerOptions()
        require_allowed(self.options)
        if self.options.row_buckets:
            self.session.use_row_buckets(self.options.row_buckets)
        self._open: list[tuple[Budget, str | None]] = []
        """The budget of each function that runs, and the key that it runs for."""
        self.num_refused = 0
        self._threads = ThreadPoolExecutor(self.options.max_requests, "gidd-call")
        self.is_alive = True
        """Whether it takes calls."""

    @property
    def session(self) -> Session:
        """The session of the pipeline."""
        return self.pipe.session

    @property
    def num_open(self) -> int:
        """Functions that have begun and not ended."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether a further call would be refused."""
        return self.num_open >= self.options.max_requests

    def require_room(self, num_jobs: int = 1, key: str | None = None) -> None:
        """Raise `Overloaded` if this many further functions are too many.

        Those of one key may be as many as there are free places left: one key alone holds half of
        all, and leaves room for others. Without a key all places may be used.
        """
        of_key = [budget for budget, name in self._open if name == key]
        free = self.options.max_requests - self.num_open
        if num_jobs <= free - (0 if key is None else len(of_key)):
            return
        self.num_refused += 1
        blocking = of_key if num_jobs <= free else [budget for budget, _ in self._open]
        # a place is free when one of these is done, or its time is over
        wait = self.session.expected_wait / max(1, len(blocking))
        seconds = min([max(1.0, wait), *(budget.seconds_left for budget in blocking)])
        is_full = f"{self.num_open} requests are open, at most {self.options.max_requests} may be."
        if num_jobs <= free:
            is_full = f"{len(of_key)} requests of this key are open, as many as others may yet be."
        raise Overloaded(f"{is_full} Try again in {seconds:.0f} seconds.", seconds)

    async def call(self, function: Callable[[], _T], **settings: Any) -> _T:
        """Call a function of the pipeline, see `call_all`."""
        (result,) = await self.call_all([function], **settings)
        return result

    async def call_all(
        self, functions: Sequence[Callable[[], _T]], *, key: str | None = None, **settings: Any
    ) -> list[_T]:
        """Call functions of the pipeline, each in a thread; refuse if too many are open.

        Together they have one limit of time and of cost. The first that fails ends the others, and
        if this is cancelled, what they wait for is. `key` is whose they are, and `settings` are
        arguments of `Budget`.
        """
        self.require_room(len(functions), key)
        limits: dict[str, Any] = {"seconds": self.options.seconds, "clock": self.session.clock}
        limits["max_cost"] = self.options.max_cost
        loop, running = asyncio.get_running_loop(), list[asyncio.Future[_T]]()
        with Budget(**(limits | settings)) as budget:
            for function in functions:
                run = partial(_run, budget, function)
                call = loop.run_in_executor(self._threads, partial(copy_context().run, run))
                self._open.append((budget, key))
                call.add_done_callback(lambda _: self._open.remove((budget, key)))
                running.append(call)
            results = await asyncio.shield(asyncio.gather(*running, return_exceptions=True))
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
            raise error  # the first that failed by itself
        return [result for result in results if not isinstance(result, BaseException)]

    async def stream(
        self, function: Callable[[Callable[[_T], None]], object], **settings: Any
    ) -> AsyncGenerator[_T]:
        """Call a function that emits items; yield them. For the arguments see `call`.

        A slow client gets merged items: a new item with a method `after(item)` is merged into an
        item that still waits, if the method returns the merged item and not None.
        """
        loop, is_ready, items = asyncio.get_running_loop(), asyncio.Event(), list[_T]()

        def add(item: Any) -> None:
            for position in range(len(items) if hasattr(item, "after") else 0):
                if (both := item.after(items[position])) is not None:
                    items[position] = both
                    break
            else:
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
        """Take no further calls; those that are open fail."""
        self.is_alive = False
        for budget, _ in list(self._open):
            budget.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _run(budget: Budget, function: Callable[[], _T]) -> _T:
    try:
        return function()
    except asyncio.CancelledError as error:
        raise Cancelled("the request was cancelled.") from error
    except KeyboardInterrupt as error:  # of a step: it would end the service
        budget.cancel()
        raise RuntimeError("a step was interrupted.") from error
    except BaseException:
        budget.cancel()  # the other functions of the call
        raise
