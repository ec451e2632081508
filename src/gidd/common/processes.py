"""Worker processes that end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess


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
