"""Progress of a task with several phases of forward passes."""

from __future__ import annotations

from functools import partial
from typing import final

from gidd.proofreading.noise_level import OnCallsDone


@final
class CallPhases:
    """Adds up the forward passes of phases, each of which reports its own."""

    def __init__(self, on_calls: OnCallsDone | None, *expected: int) -> None:
        self._on_calls = on_calls
        self._done = [0] * len(expected)
        self._expected = list(expected)

    def phase(self, number: int) -> OnCallsDone | None:
        """Return the callback of a phase; None if nobody wants to know."""
        return None if self._on_calls is None else partial(self._report, number)

    def _report(self, number: int, done: int, expected: int) -> None:
        self._done[number], self._expected[number] = done, expected
        if self._on_calls is not None:
            self._on_calls(sum(self._done), sum(self._expected))
