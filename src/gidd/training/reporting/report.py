"""Report the metrics of a run: to its log file, to trackers, and to the terminal.

with Report(folder, num_steps=1000, enabled=world.is_rank_zero) as report:
    report.training(10, {"loss": 6.25, "nelbo": 6.5, "tokens_per_second": 12_000.0})
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self, final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from gidd.common.terminal import printable
from gidd.training.reporting.log import MetricsLog
from gidd.training.reporting.trackers import Tracker

_FIRST_LINES = 3
_SECONDS_BETWEEN_LINES = (10.0, 300.0)
_REFRESHES_PER_SECOND = 2
_SAMPLES, _SAMPLE_LENGTH = 2, 400


@final
class Report:
    """Writes the metrics of a run to `metrics.jsonl` and trackers, and shows those in `COLUMNS`.

    `start` is the step of the restored checkpoint: later lines of the log are removed. Without
    `enabled` all methods do nothing; with `quiet` nothing is shown. Trackers that fail are dropped.
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
        self._view = View(console, num_steps, start)
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
        for index, sample in enumerate(samples):
            name = f"sample/{index}"
            self._track(lambda tracker, name=name, text=sample: tracker.text(step, name, text))
        self._view.evaluation(step, metrics, samples)

    def lacks_evaluation(self, step: int) -> bool:
        """Return whether the log lacks the evaluation of the resumed step; rank 0 has the log."""
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
                self.note(f"{tracker.name} failed; nothing more is logged to it: {error!r}")


@final
class View:
    """Prints notes, evaluations and training steps: the first few, others at growing intervals.

    A terminal shows the newest step and a progress bar at its bottom instead.
    """

    def __init__(self, console: Console, num_steps: int, start: int = 0) -> None:
        self._console, self._num_steps, self._step = console, num_steps, start
        self._newest, self._lines = "", 0
        self._begin = self._last = time.monotonic()
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._is_live = console.is_terminal and not console.quiet
        if self._is_live:
            self._live.start()

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a step at the bottom of a terminal, otherwise print a line if one is due."""
        now, self._step = time.monotonic(), step
        self._newest = f"step {step:,}/{self._num_steps:,}  {format_metrics(metrics)}"
        least, most = _SECONDS_BETWEEN_LINES
        pause = min(max(least, 0.01 * (now - self._begin)), most)
        is_due = now - self._last >= pause or step >= self._num_steps
        if not self._is_live and (is_due or self._lines < _FIRST_LINES):
            self._lines, self._last = self._lines + 1, now
            self.note(self._newest)

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Print a line, and one for each of the first samples."""
        label = "validation" if metrics else "samples"
        self.note(f"{label} at step {step:,}  {format_metrics(metrics)}".rstrip())
        for sample in samples[:_SAMPLES]:
            self.note(f"  sample: {excerpt(sample)}")

    def note(self, text: str) -> None:
        """Print a line without control characters, which names of files may have."""
        self._console.print(Text(printable(text)), soft_wrap=True, highlight=False)

    def render(self) -> Group:
        """Return the bottom of the terminal."""
        bar = ProgressBar(total=self._num_steps, completed=self._step)
        return Group(Text(self._newest, style="bold"), bar)

    def close(self) -> None:
        """Draw the bottom a last time."""
        self._live.stop()


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return the metrics of `COLUMNS` and the times in one line."""
    words: list[str] = []
    for name, title, write in COLUMNS:
        value, error = metrics.get(name), metrics.get(f"{name}_se", math.nan)
        if value is not None and 0 < error < 1000 and math.isfinite(value):
            digits = min(max(1 - math.floor(math.log10(error)), 0), 4)
            words.append(f"{title} {value:.{digits}f} ± {error:.{digits}f}")
        elif value is not None:
            words.append(f"{title} {write(value)}")
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
    return str(timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "?"


def _nats(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", _nats),
    ("nelbo", "NELBO", _nats),
    ("ppl", "PPL", lambda ppl: f"{ppl:,.2f}" if ppl < 100_000 else f"{ppl:.2e}"),
    ("grad_norm", "|grad|", lambda norm: f"{norm:.3f}" if 1e-3 <= norm < 1000 else f"{norm:.2e}"),
    ("learning_rate", "lr", "{:.1e}".format),
    ("tokens_per_second", "tokens/s", lambda n: f"{n:,.0f}" if n < 1e6 else f"{n / 1e6:,.2f}M"),
    ("mfu", "MFU", "{:.1%}".format),
)
"""Metric, title and format of values, the most important first."""
