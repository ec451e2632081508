"""Worker processes of this machine, which exit when their parent does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from gidd.errors import ConfigError, DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
ReportProgress = Callable[[int], None]
"""Called with the tasks, 0 or 1, that are finished since the call before."""

_shared: dict[str, Any] = {}  # in a worker process: values shared with the parent


def run_tasks(
    function: Callable[[Item, ReportProgress], Result],
    items: Sequence[Item],
    workers: int,
    report: ReportProgress,
) -> list[Result]:
    """Apply `function` to every item on `workers` processes; return the results in order.

    One worker means this process. An error in one task stops all.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}. Use the number of cores.")
    if workers == 1 or len(items) <= 1:
        return [function(item, report) for item in items]
    context = multiprocessing.get_context("spawn")  # fork is not safe with threads
    count, stop = context.Value("q"), context.Value("b")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, context, _start_worker, (count, stop, threads)) as pool:
        futures = [pool.submit(function, item, _report) for item in items]
        pending, seen = set(futures), 0
        try:
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                now = count.value
                report(now - seen)
                seen = now
                for future in done:
                    future.result()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process was killed, perhaps because memory ran out. Run the same command "
                "again with fewer workers: finished tasks are kept."
            ) from error
        finally:
            stop.value = True
            pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]


def _start_worker(count: Any, stop: Any, threads: int) -> None:
    follow_parent()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    _shared.update(count=count, stop=stop)


def _report(tasks: int) -> None:
    if _shared["stop"].value:
        raise InterruptedError("the preparation was stopped")
    with _shared["count"].get_lock():
        _shared["count"].value += tasks


def follow_parent(*_worker: object) -> None:
    """Exit when the parent ends, also by SIGKILL, and leave Ctrl-C to it.

    Called first in every worker process; arguments of its pool, such as its number, are ignored.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a process that multiprocessing did not start"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
