"""Progress of sampling and correction on stderr."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline
    from gidd.sampling import Event, OnStep


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
        columns = (
            TextColumn(f"{action} step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console, transient=True, expand=True) as progress:
            task = progress.add_task("", total=None)
            steps_done: dict[int, int] = {}

            def count_steps(events: Sequence[Event]) -> None:
                """Count the steps of all sequences; steps that were skipped count as done."""
                steps_done.update({event.ticket.number: event.steps_done for event in events})
                longest = max((event.ticket.num_steps for event in events), default=0)
                progress.update(
                    task, completed=sum(steps_done.values()), total=num_sequences * longest
                )

            yield count_steps
    else:
        yield None
