"""What a person sees of a run: a live table on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_FIRST_LINES = 3
_SECONDS_BETWEEN_LINES = (10.0, 300.0)
_REFRESHES_PER_SECOND = 2
_SAMPLES, _SAMPLE_LENGTH = 2, 400
_WIDE = 100


class View(Protocol):
    """One way to show a run."""

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show where the run is."""
        ...

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Show how good the model is, and what it writes."""
        ...

    def note(self, text: str) -> None:
        """Show a remark."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def open_view(console: Console, num_steps: int, start: int, *, quiet: bool) -> View:
    """The view that suits where it is shown."""
    if quiet:
        return SilentView()
    if console.is_terminal:
        return LiveView(console, num_steps, start)
    return PlainView(console, num_steps)


@final
class SilentView:
    """Shows nothing."""

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@final
class PlainView:
    """Lines: the first few steps, every evaluation, and in between ever more rarely."""

    def __init__(self, console: Console, num_steps: int) -> None:
        self._console, self._num_steps = console, num_steps
        self._lines = 0
        self._begin = self._last = time.monotonic()

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line, if one is due."""
        now = time.monotonic()
        least, most = _SECONDS_BETWEEN_LINES
        pause = min(max(least, 0.01 * (now - self._begin)), most)
        if self._lines < _FIRST_LINES or now - self._last >= pause or step >= self._num_steps:
            self._lines, self._last = self._lines + 1, now
            self._print(f"step {step:,}/{self._num_steps:,}  {in_words(metrics)}")

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """A line, and one for each of the first samples."""
        self._print(f"validation at step {step:,}  {in_words(metrics)}")
        for sample in samples[:_SAMPLES]:
            self._print(f"  sample: {excerpt(sample)}")

    def note(self, text: str) -> None:
        """A line."""
        self._print(text)

    def close(self) -> None:
        """Nothing is open."""

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


@final
class LiveView:
    """A table and a bar that stay at the foot of the terminal; the rest scrolls above them."""

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
        """Drawn at the next refresh."""
        self._step, self._training, self._last = step, metrics, time.monotonic()

    def evaluation(self, step: int, metrics: Mapping[str, float], samples: Sequence[str]) -> None:
        """Drawn at the next refresh; it and the first samples scroll by as well."""
        self._validated, self._validation = step, metrics
        line = Text.assemble((f"validation at step {step:,}", "bold"), "  ", in_words(metrics))
        self._console.print(line, soft_wrap=True)
        for sample in samples[:_SAMPLES]:
            text = Text(f"• {excerpt(sample)}", style="italic")
            self._console.print(Padding(text, (0, 0, 0, 2)))

    def note(self, text: str) -> None:
        """Scrolls by."""
        self._console.print(Text(text, style="cyan"), soft_wrap=True)

    def close(self) -> None:
        """Draw once more and leave it standing."""
        self._live.stop()

    def render(self) -> RenderableType:
        """The table and the bar as they are now."""
        shown = [c for c in COLUMNS if c[0] in self._training or c[0] in self._validation]
        gap = 2 if self._console.width >= _WIDE else 1
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
        table.add_column()
        table.add_column("step", justify="right", no_wrap=True)
        for _, title, _ in shown:
            table.add_column(title, justify="right", no_wrap=True)
        rows = (
            ("training", self._step, self._training),
            ("validation", self._validated, self._validation),
        )
        for title, step, metrics in rows:
            if metrics:
                values = [write(metrics[n]) if n in metrics else "" for n, _, write in shown]
                table.add_row(Text(title, style="bold"), f"{step:,}", *values)
        parts = (table, self._bar()) if shown else (self._bar(),)
        return Panel(Group(*parts), border_style="dim")

    def _bar(self) -> Table:
        now = time.monotonic()
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = self._training.get("seconds_left")
        times = duration(now - self._begin) + " elapsed"
        if left is not None:
            times += f", {duration(max(left - (now - self._last), 0.0))} left"
        bar.add_row(
            f"step {self._step:,} of {self._num_steps:,}",
            ProgressBar(total=self._num_steps, completed=self._step),
            times,
        )
        return bar


def in_words(metrics: Mapping[str, float]) -> str:
    """The metrics that matter most, in one line."""
    words = [f"{title} {write(metrics[name])}" for name, title, write in COLUMNS if name in metrics]
    if "seconds" in metrics:
        words.append(f"{duration(metrics['seconds'])} elapsed")
    if "seconds_left" in metrics:
        words.append(f"{duration(metrics['seconds_left'])} left")
    return "  ".join(words)


def excerpt(text: str) -> str:
    """The beginning of a text in one line, without characters that could steer a terminal."""
    text = " ".join(text[: 4 * _SAMPLE_LENGTH].split())
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= _SAMPLE_LENGTH else text[:_SAMPLE_LENGTH] + " ..."


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, and days if there are any."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (
        f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"
    )


def _nats(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def _perplexity(value: float) -> str:
    return f"{value:,.2f}" if value < 100_000 else f"{value:.2e}"


def _norm(value: float) -> str:
    return f"{value:.3f}" if 1e-3 <= value < 1000 else f"{value:.2e}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", _nats),
    ("nelbo", "NELBO", _nats),
    ("nll", "NLL", _nats),
    ("ppl", "PPL", _perplexity),
    ("grad_norm", "|grad|", _norm),
    ("learning_rate", "lr", "{:.1e}".format),
    ("tokens_per_second", "tokens/s", _rate),
    ("mfu", "MFU", "{:.1%}".format),
)
"""Metric, title, and how its values are written."""
