"""Report the metrics of a run: to its log file, to trackers and to the terminal.

with Report(folder, num_steps=1000, enabled=world.is_rank_zero) as report:
    report.training(10, {"loss": 6.25, "nelbo": 6.5, "tokens_per_second": 12_000.0})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, final

from rich.console import Console

from gidd.training.reporting.console import open_view
from gidd.training.reporting.log import MetricsLog
from gidd.training.reporting.trackers import Tracker


@final
class Report:
    """Writes the metrics of a run to `metrics.jsonl` and trackers, and shows them.

    All metrics are written (see `log`); the terminal shows those of `console.COLUMNS`. `mfu` is a
    fraction of 1.

    Args:
        folder: Folder of the run, in which `metrics.jsonl` is written.
        num_steps: Number of steps of the complete run.
        start: Step of the restored checkpoint; later lines of the log are removed.
        enabled: Whether this process reports; if False, all methods do nothing.
        quiet: Show nothing on the terminal; the log and trackers are still written.
        trackers: Trackers to log to. One that fails is dropped and the run continues.
        console: Console to print to; standard error by default.
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
        self._view = open_view(console or Console(stderr=True), num_steps, start, quiet=quiet)
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
