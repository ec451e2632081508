"""Messages and progress on standard error: a bar on a terminal, lines in pipes and logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from gidd.common.terminal import printable
from gidd.common.urls import redacted

_SECONDS_BETWEEN_LINES = 30.0

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done and in total."""


def print_message(text: str) -> None:
    """Print a message after `gidd: `, without control characters and credentials of URLs."""
    print(f"gidd: {printable(redacted(text))}", file=sys.stderr, flush=True)


@contextmanager
def show_counts(action: str) -> Generator[Callable[[int, int], None]]:
    """Yield a callback that shows (done, total) with the time left."""
    with show_actions() as report:
        yield partial(report, action)


@contextmanager
def show_actions() -> Generator[OnProgress]:
    """Yield a callback that shows (action, done, total) with the time left of the action."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines()
        return
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.MofNCompleteColumn(),
        progress.BarColumn(bar_width=None),
        progress.TimeRemainingColumn(compact=True),
    )
    with progress.Progress(*columns, console=console, transient=True, expand=True) as bar:
        tasks = {"": bar.add_task("", visible=False)}

        def draw(action: str, done: int, total: int) -> None:
            if action not in tasks:
                bar.remove_task(tasks.popitem()[1])
                tasks[action] = bar.add_task(action)
            bar.update(tasks[action], completed=done, total=total)

        yield draw


class ProgressLines:
    """Prints a line at most every 30 seconds, so that logs and pipes show that work goes on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._action = clock, ""
        self._line = self._time = clock()
        self._done = 0

    def __call__(self, action: str, done: int, total: int) -> None:
        """Print what is done, and the time left at the speed since the line before."""
        now = self._clock()
        if action != self._action:
            self._action, self._done, self._time = action, done, now
        if now - self._line < _SECONDS_BETWEEN_LINES:
            return
        left = ""
        if done > self._done:
            seconds = (now - self._time) * (total - done) / (done - self._done)
            left = f", {seconds:,.0f} s left"
        print_message(f"{action}: {done:,} of {total:,}{left}.")
        self._done, self._time, self._line = done, now, now
