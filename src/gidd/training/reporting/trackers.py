"""Other programs that want the numbers of a run: TensorBoard, Weights & Biases, trackio.

Each is imported when it is asked for. They get metrics, samples and the settings that the caller
passes; never the environment, the command line, the code or what is printed.
"""

from __future__ import annotations

import html
import importlib.util
import json
import textwrap
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, final

from gidd.common import files
from gidd.common.optional import optional_package
from gidd.training.reporting.curve import LossCurve

_FLUSH_SECONDS = 1
"""A kill loses the points of so long; the log loses none."""


class Tracker(Protocol):
    """A program that keeps and draws the numbers of runs."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers, named training/... or validation/..."""
        ...

    def text(self, step: int, name: str, text: str) -> None:
        """Keep a text, e.g. a sample of the model."""
        ...

    def close(self) -> None:
        """Write what is still in memory."""
        ...


def default_trackers(folder: Path, start: int) -> tuple[list[Tracker], list[str]]:
    """What a run gets that did not ask: TensorBoard if it is there. And what to say about it."""
    if importlib.util.find_spec("tensorboard") is None:
        return [], [
            "TensorBoard is not installed; the run goes on without it. "
            'Run `pip install "gidd[train]"` to have it next time.'
        ]
    return [tensorboard_tracker(folder, start)], []


def tensorboard_tracker(
    folder: Path, start: int = 0, *, config: Mapping[str, object] | None = None
) -> Tracker:
    """Write `folder/tensorboard`, to be seen with `tensorboard --logdir folder`.

    Args:
        folder: The folder of the run.
        start: Step after which it continues; TensorBoard forgets what it has seen beyond.
        config: Settings to show with the run.
    """
    optional_package("tensorboard", "train")
    writer = optional_package("torch.utils.tensorboard", "train").SummaryWriter(
        str(folder / "tensorboard"), purge_step=start + 1, flush_secs=_FLUSH_SECONDS
    )
    if config:
        writer.add_text("settings", _verbatim(json.dumps(config, indent=2)), start)
    can_draw = importlib.util.find_spec("matplotlib") is not None
    return _TensorBoard(writer, LossCurve.of_run(folder, start) if can_draw else None)


def wandb_tracker(
    folder: Path,
    start: int = 0,
    *,
    project: str = "gidd",
    config: Mapping[str, object] | None = None,
) -> Tracker:
    """Log to Weights & Biases; `WANDB_MODE=offline` writes to `folder/wandb` only.

    A continued run keeps its id. What it had logged beyond `start` is logged a second time.

    Args:
        folder: The folder of the run; its name is the run's.
        start: Step after which it continues.
        project: Name of the project.
        config: Settings to show with the run.
    """
    wandb = optional_package("wandb", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        project=project,
        name=folder.resolve().name,
        dir=str(folder),
        id=_identity(folder, start),
        resume="allow",
        config=dict(config or {}),
        settings=settings,
    )
    run.define_metric("*", step_metric="step")
    return _Wandb(wandb, run)


def trackio_tracker(
    folder: Path,
    start: int = 0,
    *,
    project: str = "gidd",
    config: Mapping[str, object] | None = None,
) -> Tracker:
    """Log to trackio, to be seen with `trackio show`.

    A continued run keeps its name. What it had logged beyond `start` is logged a second time.

    Args:
        folder: The folder of the run; the run's name begins with its name.
        start: Step after which it continues.
        project: Name of the project.
        config: Settings to show with the run.
    """
    trackio = optional_package("trackio", "trackio")
    run = trackio.init(
        project=project,
        name=f"{folder.resolve().name}-{_identity(folder, start)}",
        config=dict(config or {}),
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return _Trackio(trackio, run)


@final
class _TensorBoard:
    def __init__(self, writer: Any, curve: LossCurve | None) -> None:
        self._writer, self._curve = writer, curve
        self._summary = optional_package("tensorboard.compat.proto.summary_pb2", "train").Summary

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # one event for all of them: six times as fast as `add_scalar` for each
        points = [self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        self._writer.file_writer.add_summary(self._summary(value=points), step)
        if self._curve is not None:
            self._curve.add(step, values)
            if any(tag.startswith("validation/") for tag in values):
                self._writer.add_image("curve", self._curve.draw(), step, dataformats="HWC")

    def text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, _verbatim(text), step)

    def close(self) -> None:
        self._writer.close()

    def __str__(self) -> str:
        return "TensorBoard"


@final
class _Wandb:
    def __init__(self, wandb: ModuleType, run: Any) -> None:
        self._wandb, self._run = wandb, run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def text(self, step: int, name: str, text: str) -> None:
        page = self._wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
        self._run.log({"step": step, name: page})

    def close(self) -> None:
        self._run.finish()

    def __str__(self) -> str:
        return "Weights & Biases"


@final
class _Trackio:
    def __init__(self, trackio: ModuleType, run: Any) -> None:
        self._trackio, self._run = trackio, run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({name: self._trackio.Markdown(_verbatim(text))}, step=step)

    def close(self) -> None:
        self._trackio.finish()

    def __str__(self) -> str:
        return "trackio"


def _verbatim(text: str) -> str:
    """Markdown that shows a text as it is."""
    return textwrap.indent(text, "    ", lambda _: True)


def _identity(folder: Path, start: int) -> str:
    """A name for the run that lasts over restarts, and is a new one if it begins anew."""
    path = folder / "run_id"
    if start == 0 or not path.is_file():
        files.write_text(path, uuid.uuid4().hex[:8])
    return path.read_text()
