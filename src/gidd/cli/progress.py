"""Progress of commands on stderr: a bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gidd.cli.messages import print_message

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline
    from gidd.sampling import Event, OnStep

_SECONDS_BETWEEN_LINES = 30.0

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of it is done and in total."""


@contextmanager
def show_progress(
    action: str, pipe: Pipeline, num_sequences: int, *, live: bool
) -> Generator[OnStep | None]:
    """Yield a callback that draws each step, or None if stderr is not a terminal.

    It draws a bar after `action` (such as "sampling") or, if `live`, the text itself. Sequences are
    samples, or windows of a text.
    """
    console = Console(stderr=True)
    if live:
        from gidd.viz.terminal import CanvasView

        mask_id = pipe.schedule.vocab.mask_id
        with CanvasView(console, pipe.token_texts, mask_id, num_sequences) as view:
            yield view
    elif console.is_terminal:
        with show_counts(f"{action} step") as report:
            steps_done: dict[int, int] = {}

            def count_steps(events: Sequence[Event]) -> None:
                """Count the steps of all sequences; steps that were skipped count as done."""
                steps_done.update({event.ticket.number: event.steps_done for event in events})
                longest = max((event.ticket.num_steps for event in events), default=0)
                report(sum(steps_done.values()), num_sequences * longest)

            yield count_steps
    else:
        yield None


@contextmanager
def show_counts(action: str) -> Generator[Callable[[int, int], None]]:
    """Yield a callback that shows (done, total) with the time left."""
    with show_actions() as report:
        yield partial(report, action)


@contextmanager
def show_actions() -> Generator[OnProgress]:
    """Yield a callback that shows (action, done, total) with the time left of the action."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        tasks = {"": progress.add_task("", visible=False)}

        def draw(action: str, done: int, total: int) -> None:
            if action not in tasks:
                progress.remove_task(tasks.popitem()[1])
                tasks[action] = progress.add_task(action)
            progress.update(tasks[action], completed=done, total=total)

        yield draw


@final
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
