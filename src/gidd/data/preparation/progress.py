"""Progress of a preparation: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def show_preparation_progress(
    total: int, *, quiet: bool = False
) -> Generator[Callable[[int, int], None]]:
    """Show documents, tokens, their rates and the time left on standard error.

    Yields a function to call with the number of documents and tokens that were just processed.
    """
    console = Console(file=sys.stderr)
    is_plain = not quiet and not console.is_terminal
    rates = "documents, {task.fields[rates]}, left"
    columns = ("preparing", BarColumn(), MofNCompleteColumn(), rates, TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=quiet or is_plain)
    bar.add_task("", total=total, tokens=0, rates="")
    (task,) = bar.tasks
    last_line = time.monotonic()

    def advance(documents: int, tokens: int) -> None:
        nonlocal last_line
        bar.update(task.id, advance=documents, tokens=task.fields["tokens"] + tokens)
        bar.update(task.id, rates=_rates(task))
        if is_plain and time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
            _print_line(task)
            last_line = time.monotonic()

    with bar:
        yield advance
    if is_plain and task.completed:
        _print_line(task)


def _rates(task: Task) -> str:
    seconds = max(task.elapsed or 0, 1e-3)
    documents, tokens = task.completed / seconds, task.fields["tokens"] / seconds
    return f"{documents:,.0f} documents/s, {tokens:,.0f} tokens/s"


def _print_line(task: Task) -> None:
    left = (task.elapsed or 0) * (task.remaining or 0) / max(task.completed, 1)
    counts = f"{task.completed:,.0f} of {task.total:,} documents, {task.fields['tokens']:,} tokens"
    print(f"{counts}; {_rates(task)}; {left:,.0f} s left", file=sys.stderr, flush=True)
