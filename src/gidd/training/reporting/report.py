"""What a run tells: numbers to a file and to trackers, a view to a person.

with Report(folder, num_steps=1000, first=world.is_first) as report:
    report.training(10, {"loss": 6.25, "nelbo": 6.5, "tokens_per_second": 12_000.0})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from rich.console import Console

from gidd.training.reporting.console import open_view
from gidd.training.reporting.log import MetricsLog
from gidd.training.reporting.trackers import Tracker


@final
class Report:
    """What a person and a program see of a run. Only the first rank's writes; others are silent.

    Every metric that is given is written; the view shows those of `report_view.COLUMNS`. `mfu` is a
    share of 1. See `metrics_log` for the file.

    Args:
        folder: Where the log goes, `metrics.jsonl`.
        num_steps: Steps of the whole run.
        start: Steps that a restored checkpoint has already done; the log is cut back to there.
        first: Whether this rank is the one that writes.
        quiet: Show nothing; the log and the trackers are written all the same.
        trackers: Others that want the numbers. One that fails is dropped, the run goes on.
        console: Where to show it; standard error by default.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_steps: int,
        start: int = 0,
        first: bool = True,
        quiet: bool = False,
        trackers: Sequence[Tracker] = (),
        console: Console | None = None,
    ) -> None:
        self._first = first
        if not first:
            return
        self._trackers = list(trackers)
        self._log = MetricsLog(folder, start)
        self._view = open_view(console or Console(stderr=True), num_steps, start, quiet=quiet)
        if self._log.num_damaged:
            self.note(f"{self._log.path}: {self._log.num_damaged} damaged lines were left out.")

    def training(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell about the steps since the last call."""
        if not self._first:
            return
        self._log.write("training", step, metrics)
        self._track(lambda tracker: tracker.scalars(step, _grouped("training", metrics)))
        self._view.training(step, metrics)

    def evaluation(
        self, step: int, metrics: Mapping[str, float], samples: Sequence[str] = ()
    ) -> None:
        """Tell how good the model is on held-out text, and what it writes."""
        if not self._first:
            return
        self._log.write("evaluation", step, metrics, samples)
        self._track(lambda tracker: tracker.scalars(step, _grouped("validation", metrics)))
        for number, sample in enumerate(samples):
            name, text = f"sample/{number}", sample
            self._track(lambda tracker, name=name, text=text: tracker.text(step, name, text))
        self._view.evaluation(step, metrics, samples)

    def note(self, text: str) -> None:
        """A line for the person: resumed from, saved to."""
        if self._first:
            self._view.note(text)

    def close(self) -> None:
        """Finish all that is written."""
        if self._first:
            self._log.close()
            self._track(lambda tracker: tracker.close())
            self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _track(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in tuple(self._trackers):
            try:
                tell(tracker)
            except Exception as error:  # whatever it is, it is no reason to end a training
                self._trackers.remove(tracker)
                self.note(f"{tracker} failed and gets no more numbers: {error!r}")


def _grouped(group: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in metrics.items()}
