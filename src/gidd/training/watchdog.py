"""Signals that ask a run to stop, and a clock that ends one that hangs."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, final

from gidd.training.world import World

STOPPED = 75
"""Exit status of a run that was asked to stop, saved itself and can be continued."""

HUNG = 76
"""Exit status of a process that ended itself because no step was finished for too long."""

_BEAT = 1.0
_ORDER = ("start", "rehearsal", "evaluation", "checkpoint", "data", "step", "writing")
"""What ranks do after reaching a step's number; who is at an earlier thing is behind."""


class RankStatus(NamedTuple):
    """What a rank last said of itself."""

    rank: int
    step: int
    phase: str
    since: float
    """Seconds in this phase."""

    silent: float
    """Seconds since it said so."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: step {self.step}, {self.phase} for {self.since:.0f} s, "
            f"last heard {self.silent:.0f} s ago"
        )


@final
class Watchdog:
    """What this rank is doing, for the others to see; and whether somebody asked it to stop."""

    def __init__(self, world: World, timeout: float) -> None:
        self.stop_asked = False
        self._world, self._timeout = world, timeout
        self._step, self._phase, self._since = 0, "start", time.monotonic()
        self._ended = threading.Event()

    def phase(self, step: int, name: str) -> None:
        """Say what begins now. Costs nothing: a thread passes it on once a second."""
        self._step, self._phase, self._since = step, name, time.monotonic()

    @contextmanager
    def on(self) -> Generator[Watchdog]:
        """Catch SIGTERM and SIGINT, and end this process if nothing moves for too long."""
        caught = {
            number: signal.signal(number, self._asked) for number in (signal.SIGTERM, signal.SIGINT)
        }
        thread = threading.Thread(target=self._beat, name="watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()
            for number, handler in caught.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt  # a person who asks twice means now
        self.stop_asked = True

    def _beat(self) -> None:
        while not self._ended.wait(min(_BEAT, self._timeout / 4)):
            idle = time.monotonic() - self._since
            if self._world.size > 1:
                said = {"step": self._step, "phase": self._phase, "since": idle, "at": time.time()}
                self._world.store.set(f"watch/{self._world.rank}", json.dumps(said))
            if idle > self._timeout:
                self._give_up(idle)

    def _give_up(self, idle: float) -> None:
        """Say who is to blame and end at once: a stuck process does not run its handlers."""
        ranks = sorted(
            self._others(),
            key=lambda heard: (-(heard.silent // 5), heard.step, _ORDER.index(heard.phase)),
        )
        print(
            f"gidd: rank {self._world.rank} has been in {self._phase} of step {self._step} for "
            f"{idle:.0f} s, longer than train.timeout = {self._timeout:.0f}.\n"
            + (f"Look first at {ranks[0]}.\n" if ranks else "")
            + "".join(f"  {heard}\n" for heard in ranks[1:8])
            + "The last checkpoint is whole; the same command continues from there. This rank was:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(HUNG)

    def _others(self) -> Iterator[RankStatus]:
        for rank in range(self._world.size):
            name = f"watch/{rank}"
            if rank != self._world.rank and self._world.store.check([name]):
                said: dict[str, Any] = json.loads(self._world.store.get(name))
                silent = time.time() - said["at"]
                yield RankStatus(rank, said["step"], said["phase"], said["since"], silent)
