"""How far a preparation is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


@final
class PreparationProgress:
    """Documents and tokens done, their rates and the time left, on standard error."""

    def __init__(self, documents: int, *, quiet: bool = False) -> None:
        self._total, self._documents, self._tokens = documents, 0, 0
        self._begin = self._last_line = time.monotonic()
        self._quiet = quiet
        console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("preparing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("documents, {task.fields[rates]}, left"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._plain = not quiet and not console.is_terminal
        self._task = self._bar.add_task("", total=documents, rates="")

    def __enter__(self) -> PreparationProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if self._plain and kind is None and self._documents:
            self._print_line()

    def advance(self, documents: int, tokens: int) -> None:
        """So many more are done."""
        self._documents += documents
        self._tokens += tokens
        self._bar.update(self._task, completed=self._documents, rates=self._rates())
        if self._plain and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._print_line()

    def _rates(self) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-3)
        return (
            f"{self._documents / seconds:,.0f} documents/s, {self._tokens / seconds:,.0f} tokens/s"
        )

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        seconds = self._last_line - self._begin
        left = seconds * (self._total - self._documents) / max(self._documents, 1)
        print(
            f"{self._documents:,} of {self._total:,} documents, {self._tokens:,} tokens; "
            f"{self._rates()}; {left:,.0f} s left",
            file=sys.stderr,
            flush=True,
        )
