"""Coroutines from synchronous code, and several at once."""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import length_hint
from typing import Any, Final, TypeVar

from gidd.sampling.limits import Budget

_T = TypeVar("_T")

AT_ONCE: Final = 64
"""Coroutines in progress: enough to fill forward passes; the others have not begun."""


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine, also in a notebook, whose own loop runs in this thread.

    An interrupt of this thread ends the coroutine.
    """
    if not _is_in_event_loop():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread, Budget():  # whose end, at an interrupt, ends the other
        return thread.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def gather(coroutines: Iterable[Coroutine[Any, Any, _T]], at_once: int = AT_ONCE) -> list[_T]:
    """Run coroutines, at most `at_once` at a time, and return their results in order.

    The first that fails raises its error, ends the others, and no further one begins.
    """
    waiting, results = enumerate(coroutines), dict[int, _T]()
    has_failed = False

    async def work() -> None:
        nonlocal has_failed
        for index, coroutine in waiting:
            if has_failed:
                coroutine.close()
                continue
            try:
                results[index] = await coroutine
            except BaseException:
                has_failed = True
                raise

    num_workers = min(at_once, length_hint(coroutines, at_once))
    workers = [asyncio.ensure_future(work()) for _ in range(num_workers)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for _, coroutine in waiting:  # none of them has begun
            coroutine.close()
    return [results[index] for index in sorted(results)]
