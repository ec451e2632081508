"""Stop a run on SIGTERM or SIGINT, and exit a process whose run hangs."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

from gidd.training.world import World

STOPPED = 75  # exit status of a run that was stopped by a signal after saving a checkpoint
HUNG = 76  # exit status of a process that waited longer than `train.timeout`
_HEARTBEAT_SECONDS = 1.0
_PHASES = ("start", "checkpoint", "evaluation", "dry run", "data", "step", "writing")
"""Phases between two step numbers, in order: a rank in an earlier phase is behind."""


@final
class Watchdog:
    """Publishes the phase of this rank, records stop signals, and ends a run that hangs."""

    def __init__(self, world: World, timeout: float) -> None:
        self.stop_requested = False
        self._world, self._timeout = world, timeout
        self._step, self._phase, self._since = 0, "start", time.monotonic()
        self._closed = threading.Event()

    def phase(self, step: int, name: str) -> None:
        """Set the current phase; a background thread publishes it once a second."""
        self._step, self._phase, self._since = step, name, time.monotonic()

    @contextmanager
    def on(self) -> Generator[Watchdog]:
        """Handle SIGTERM and SIGINT, and exit this process if a phase exceeds the timeout."""
        is_main = threading.current_thread() is threading.main_thread()  # others get no signals
        numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        previous = {signum: signal.signal(signum, self._handle_signal) for signum in numbers}
        thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closed.set()
            thread.join()
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.stop_requested and signum == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C stops at once
        self.stop_requested = True

    def _run(self) -> None:
        while not self._closed.wait(min(_HEARTBEAT_SECONDS, self._timeout / 4)):
            idle = time.monotonic() - self._since
            if self._world.size > 1:
                beat = {"step": self._step, "phase": self._phase, "since": idle, "at": time.time()}
                self._world.store.set(f"watch/{self._world.rank}", json.dumps(beat))
            if idle > self._timeout:
                self._exit_hung(idle)

    def _exit_hung(self, idle: float) -> None:
        """Name the rank that is most likely stuck and exit without running any handlers."""
        candidates: list[tuple[float, int, int, str]] = []  # the most likely culprit is smallest
        for rank in range(self._world.size):
            name = f"watch/{rank}"
            if rank != self._world.rank and self._world.store.check([name]):
                beat: dict[str, Any] = json.loads(self._world.store.get(name))
                step, phase, silent = beat["step"], beat["phase"], time.time() - beat["at"]
                text = f"rank {rank}: step {step}, {phase} for {beat['since']:.0f} s"
                text += f", last heartbeat {silent:.0f} s ago"
                candidates.append((-(silent // 5), step, _PHASES.index(phase), text))
        ranks = [text for *_, text in sorted(candidates)]
        print(
            f"gidd: rank {self._world.rank} has been in phase {self._phase} of step {self._step} "
            f"for {idle:.0f} s, longer than train.timeout = {self._timeout:.0f}.\n"
            + (f"Look first at {ranks[0]}.\n" if ranks else "")
            + "".join(f"  {status}\n" for status in ranks[1:8])
            + "The last checkpoint is complete; run the same command to resume from it. Traceback "
            "of this rank:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(HUNG)
