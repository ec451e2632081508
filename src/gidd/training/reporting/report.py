"""Report the metrics of a run: to its log file, to trackers, and to the terminal.

with Report(folder, num_steps=1000, enabled=world.is_rank_zero) as report:
    report.training(10, {"loss": 6.25, "nelbo": 6.5, "tokens_per_second": 12_000.0})
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gidd.common.terminal import printable
from gidd.training.reporting.log import MetricsLog
from gidd.training.reporting.trackers import Tracker

_FIRST_LINES = 3
_SECONDS_BETWEEN_LINES = (10.0, 300.0)
_REFRESHES_PER_SECOND = 2
_SAMPLES, _SAMPLE_LENGTH = 2, 400
_WIDE, _NARROW = 100, 72
"""Console widths: from the first on columns are two spaces apart, below the second all is short."""

_FRAME = 4
"""Width of the panel's border and padding."""


@final
class Report:
    """Writes the metrics of a run to `metrics.jsonl` and trackers, and shows those in `COLUMNS`.

    `start` is the step of the restored checkpoint: later lines of the log are removed. With
    `enabled=False` all methods do nothing; with `quiet` nothing is shown. A tracker that fails is
    dropped and the run continues. The console is standard error by default.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_steps: int,
        start: int = 0,
        enabled: bool = True,
        quiet: bool = False,
        trackers: Sequence[Tracker] = (),
        console: Console | None = None,
    ) -> None:
        self._enabled = enabled
        if not enabled:
            return
        self._trackers = list(trackers)
        self._log = MetricsLog(folder, start)
        console = Console(quiet=True) if quiet else console or Console(stderr=True)
        is_live = console.is_terminal and not quiet
        view = LiveView(console, num_steps, start) if is_live else PlainView(console, num_steps)
        self._view = view
        if self._log.num_damaged:
            self.note(f"{self._log.path}: removed {self._log.num_damaged} damaged lines.")

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics of the training steps since the last call."""
        if not self._enabled:
            return
        self._log.write("training", step, metrics)
        self._track_scalars("training", step, metrics)
        self._view.training(step, metrics)

    def evaluation(
        self, step: int, metrics: Mapping[str, float], samples: Sequence[str] = ()
    ) -> None:
        """Report metrics on held-out text, and generated samples."""
        if not self._enabled:
            return
        self._log.write("evaluation", step, metrics, samples)
        self._track_scalars("validation", step, metrics)
        for number, sample in enumerate(samples):
            name = f"sample/{number}"
            self._track(lambda tracker, name=name, text=sample: tracker.text(step, name, text))
        self._view.evaluation(step, metrics, samples)

    def lacks_evaluation(self, step: int) -> bool:
        """Return whether the log lacks the evaluation of the step that the run resumed from.

        False on the ranks that do not report.
        """
        return self._enabled and not self._log.has("evaluation", step)

    def note(self, text: str) -> None:
        """Show a message, e.g. which checkpoint the run resumed from."""
        if self._enabled:
            self._view.note(text)

    def close(self) -> None:
        """Close the log, the trackers and the view."""
        if self._enabled:
            self._log.close()
            self._track(lambda tracker: tracker.close())
            self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _track_scalars(self, group: str, step: int, metrics: Mapping[str, float]) -> None:
        values = {f"{group}/{name}": value for name, value in metrics.items()}
        self._track(lambda tracker: tracker.scalars(step, values))

    def _track(self, action: Callable[[Tracker], None]) -> None:
        for tracker in tuple(self._trackers):
            try:
                action(tracker)
            except Exception as error:  # a tracker must never stop the training
                self._trackers.remove(tracker)
                self.note(f"{tracker} failed; nothing more is logged to it: {error!r}")


@final
class PlainView:
    """Prints lines: the first few steps, every evaluation, and others at growing intervals."""

    def __init__(self, console: Console, num_steps: int) -> None:
        self._console, self._num_steps = console, num_steps
        self._lines = 0
        self._begin = self._last = time.monotonic()

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line if one is due."""
        now = time.monotonic()
        least, most = _SECONDS_BETWEEN_LINES
        pause = min(max(least, 0.01 * (now - self._begin)), most)
        if self._lines < _FIRST_LINES or now - self._last >= pause or step >= self._num_steps:
            self._lines, self._last = self._lines + 1, now
            self.note(f"step {step:,}/{self._num_steps:,}  {format_metrics(metrics)}")

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Print a line, and one for each of the first samples."""
        what = "validation" if metrics else "samples"
        self.note(f"{what} at step {step:,}  {format_metrics(metrics)}".rstrip())
        for sample in samples[:_SAMPLES]:
            self.note(f"  sample: {excerpt(sample)}")

    def note(self, text: str) -> None:
        """Print a line without control characters, which names of files may have."""
        self._console.print(Text(printable(text)), soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Do nothing: nothing is open."""


@final
class LiveView:
    """A table and a progress bar at the bottom of the terminal; the rest scrolls above them."""

    def __init__(self, console: Console, num_steps: int, start: int) -> None:
        self._console, self._num_steps, self._step = console, num_steps, start
        self._training: Mapping[str, float] = {}
        self._validation: Mapping[str, float] = {}
        self._validated = 0
        self._begin = self._last = time.monotonic()
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Update the table at the next refresh."""
        self._step, self._training, self._last = step, metrics, time.monotonic()

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Print metrics and the first samples; update the table at the next refresh."""
        self._validated, self._validation = step, metrics
        title = (f"validation at step {step:,}", "bold")
        self._console.print(Text.assemble(title, "  ", format_metrics(metrics)), soft_wrap=True)
        for sample in samples[:_SAMPLES]:
            text = Text(f"• {excerpt(sample)}", style="italic")
            self._console.print(Padding(text, (0, 0, 0, 2)))

    def note(self, text: str) -> None:
        """Print a line above the table, without control characters."""
        self._console.print(Text(printable(text), style="cyan"), soft_wrap=True)

    def close(self) -> None:
        """Draw the table a last time."""
        self._live.stop()

    def render(self) -> RenderableType:
        """Return the table and the progress bar, in the width of the console."""
        has_metrics = bool(self._training or self._validation)
        parts = (self._table(), self._bar()) if has_metrics else (self._bar(),)
        return Panel(Group(*parts), border_style="dim")

    def _table(self) -> Table:
        """Build the table; the last of `COLUMNS` are left out where the console is narrow."""
        width = self._console.width
        titles = ("train", "valid") if width < _NARROW else ("training", "validation")
        runs = ((self._step, self._training), (self._validated, self._validation))
        rows = [(title, *run) for title, run in zip(titles, runs, strict=True) if run[1]]
        columns = [("", [title for title, _, _ in rows]), ("step", [f"{row[1]:,}" for row in rows])]
        for name, title, write in COLUMNS:
            cells = [_cell(metrics, name, write) for _, _, metrics in rows]
            columns += [(title, cells)] if any(cells) else []
        gap, room = 2 if width >= _WIDE else 1, width - _FRAME
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
        shown: list[list[str]] = []
        for title, cells in columns:
            room -= max(map(len, (title, *cells)))
            if room < 0:
                break
            room -= gap
            if title:
                table.add_column(title, justify="right", no_wrap=True)
            else:
                table.add_column(style="bold", no_wrap=True)
            shown.append(cells)
        for row in zip(*shown, strict=True):
            table.add_row(*row)
        return table

    def _bar(self) -> Table:
        now, is_narrow = time.monotonic(), self._console.width < _NARROW
        step, total = f"{self._step:,}", f"{self._num_steps:,}"
        steps = f"{step}/{total}" if is_narrow else f"step {step} of {total}"
        times = f"{format_duration(now - self._begin)} elapsed"
        left = self._training.get("seconds_left")
        if left is not None:
            remaining = f"{format_duration(max(left - (now - self._last), 0.0))} left"
            times = remaining if is_narrow else f"{times}, {remaining}"
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(steps, ProgressBar(total=self._num_steps, completed=self._step), times)
        return bar


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return the metrics of `COLUMNS` and the times in one line."""
    words = [
        f"{title} {_cell(metrics, name, write)}"
        for name, title, write in COLUMNS
        if name in metrics
    ]
    if "seconds" in metrics:
        words.append(f"{format_duration(metrics['seconds'])} elapsed")
    if "seconds_left" in metrics:
        words.append(f"{format_duration(metrics['seconds_left'])} left")
    return "  ".join(words)


def excerpt(text: str) -> str:
    """Return the start of a text in one line, without terminal control characters."""
    text = printable(" ".join(text[: 4 * _SAMPLE_LENGTH].split()))
    return text if len(text) <= _SAMPLE_LENGTH else text[:_SAMPLE_LENGTH] + " ..."


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss, with days if there are any; "?" if it is not finite."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{minute:02}:{second:02}"
    return f"{days}d {hour:02}:{clock}" if days else f"{hour}:{clock}"


def _cell(metrics: Mapping[str, float], name: str, write: Callable[[float], str]) -> str:
    value, error = metrics.get(name), metrics.get(f"{name}_se")
    if value is None:
        return ""
    if error is None or not 0 < error < 1000 or not math.isfinite(value):
        return write(value)
    digits = min(max(1 - math.floor(math.log10(error)), 0), 4)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _nats(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", _nats),
    ("nelbo", "NELBO", _nats),
    ("nll", "NLL", _nats),
    ("ppl", "PPL", lambda ppl: f"{ppl:,.2f}" if ppl < 100_000 else f"{ppl:.2e}"),
    ("grad_norm", "|grad|", lambda norm: f"{norm:.3f}" if 1e-3 <= norm < 1000 else f"{norm:.2e}"),
    ("learning_rate", "lr", "{:.1e}".format),
    ("tokens_per_second", "tokens/s", lambda n: f"{n:,.0f}" if n < 1e6 else f"{n / 1e6:,.2f}M"),
    ("mfu", "MFU", "{:.1%}".format),
)
"""Metric, title and format of values, the most important first."""
