"""Tasks on several processes of this machine, which end when the process that began them ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from gidd.errors import ConfigError, DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
ReportProgress = Callable[[int, int], None]
"""Told of every few documents: how many they are, and how many tokens."""

_shared: dict[str, Any] = {}
"""In a worker process: the counters that it shares with its parent."""


def run(
    function: Callable[[Item, ReportProgress], Result],
    items: Sequence[Item],
    workers: int,
    report: ReportProgress,
) -> list[Result]:
    """`function` of every item, in any order on `workers` processes; results in order.

    With one worker everything happens in this process. An error in one task ends all.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}. Use the number of cores.")
    if workers == 1 or len(items) <= 1:
        return [function(item, report) for item in items]
    context = multiprocessing.get_context("spawn")  # fork does not go with threads
    counters = {"documents": context.Value("q"), "tokens": context.Value("q")}
    stop = context.Value("b")
    threads = max(1, (os.cpu_count() or 1) // workers)
    begin = (counters, stop, threads)
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=begin) as pool:
        futures = [pool.submit(_call, function, item) for item in items]
        pending, seen = set(futures), (0, 0)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                now = (counters["documents"].value, counters["tokens"].value)
                report(now[0] - seen[0], now[1] - seen[1])
                seen = now
                for future in done:
                    future.result()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process was ended from outside, perhaps for want of memory. Start the "
                "same command again, with fewer workers: finished tasks are kept."
            ) from error
        finally:
            stop.value = True
            pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]


def _begin(counters: dict[str, Any], stop: Any, threads: int) -> None:
    """First thing in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops us in good order
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    _shared.update(counters, stop=stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[[Item, ReportProgress], Result], item: Item) -> Result:
    return function(item, _report)


def _report(documents: int, tokens: int) -> None:
    if _shared["stop"].value:
        raise InterruptedError("the preparation was stopped")
    for name, value in (("documents", documents), ("tokens", tokens)):
        with _shared[name].get_lock():
            _shared[name].value += value
