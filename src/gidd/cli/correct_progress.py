"""Progress of `gidd correct` on stderr: characters done of all texts, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

_Report = Callable[[int, int], None]
"""Called with the number of units done, and of all."""


@final
class CorrectProgress:
    """Draws bars if stderr is a terminal: one for estimating the error rate, one for characters.

    The time left is that of the remaining characters at the speed of this run, plus one estimate
    for each text that follows.
    """

    def __init__(
        self,
        num_texts: int,
        num_characters: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._clock = clock
        self._texts_left, self._total = num_texts, num_characters
        self._done = self._measured = 0
        self._seconds = 0.0
        self._estimates: list[float] = []

    @contextmanager
    def estimating(self) -> Generator[_Report]:
        """Show an estimate of the error rate; yields what reports its forward passes."""
        start = self._clock()
        with self._bar("estimating") as (progress, task):

            def report(done: int, total: int) -> None:
                left = (self._clock() - start) / max(done, 1) * (total - done)
                progress.update(task, completed=done, total=total, left=_duration(left))

            yield report
        self._estimates.append(self._clock() - start)

    @contextmanager
    def correcting(self, num_done: int) -> Generator[Callable[[int], None]]:
        """Show the correction of a text; yields what reports the characters of a finished part.

        `num_done` characters are known from an earlier run, in no time.
        """
        self._done += num_done
        self._texts_left -= 1
        with self._bar("correcting") as (progress, task):

            def show() -> None:
                progress.update(
                    task, completed=self._done, total=self._total, left=self._time_left()
                )

            def report(num_characters: int) -> None:
                nonlocal last
                now = self._clock()
                self._seconds += now - last
                last = now
                self._done += num_characters
                self._measured += num_characters
                show()

            show()
            last = self._clock()
            yield report

    def skip(self, num_characters: int) -> None:
        """Count a text that needs no correction as done."""
        self._done += num_characters
        self._texts_left -= 1

    def _time_left(self) -> str:
        if not self._measured:
            return ""
        speed = self._seconds / self._measured
        estimates = sum(self._estimates) / max(len(self._estimates), 1)
        return _duration(speed * (self._total - self._done) + estimates * self._texts_left)

    @contextmanager
    def _bar(self, action: str) -> Generator[tuple[Progress, TaskID]]:
        progress = Progress(
            TextColumn("{task.description}"),
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        with progress:
            yield progress, progress.add_task(action, total=None, left="")


def _duration(seconds: float) -> str:
    return f"{timedelta(seconds=round(seconds))} left"
