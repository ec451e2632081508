"""Trackers: TensorBoard, Weights & Biases, trackio.

Each is imported on first use. Only metrics, samples and the given settings are logged; never the
environment, the command line, the code or the output.
"""

from __future__ import annotations

import html
import importlib.util
import json
import textwrap
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gidd.common import files
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import ConfigError

_PROJECT = "gidd"
_FLUSH_SECONDS = 1  # a kill loses the points of the last second; metrics.jsonl loses none


@final
@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A program that stores and plots the metrics of runs."""

    name: str
    scalars: Callable[[int, Mapping[str, float]], None]
    """Log metrics, named training/... or validation/..., of a step."""
    text: Callable[[int, str, str], None]
    """Log a text by name, e.g. a generated sample, of a step."""
    close: Callable[[], None]


def default_trackers(folder: Path, start: int) -> tuple[list[Tracker], list[str]]:
    """Return TensorBoard if it is installed, and messages for the user."""
    if importlib.util.find_spec("tensorboard") is None:
        return [], ['no TensorBoard: it is not installed. `pip install "gidd[train]"` installs it.']
    return [tensorboard_tracker(folder, start, {})], []


def open_trackers(
    names: Sequence[str], folder: Path, start: int, config: Mapping[str, object]
) -> list[Tracker]:
    """Return the trackers with these names: "tensorboard", "wandb" and "trackio".

    `start` is the step that a run resumes from, `config` are settings to log. TensorBoard purges
    the points beyond `start`; the others log those steps twice.
    """
    make = dict(tensorboard=tensorboard_tracker, wandb=wandb_tracker, trackio=trackio_tracker)
    for name in names:
        if name not in make:
            raise ConfigError(f"trackers must be among {', '.join(make)}, got {shorten(name)}.")
    return [make[name](folder, start, config) for name in names]


def tensorboard_tracker(folder: Path, start: int, config: Mapping[str, object]) -> Tracker:
    """Log to `folder/tensorboard`; view it with `tensorboard --logdir folder`."""
    optional_package("tensorboard", "train")
    writer = optional_package("torch.utils.tensorboard", "train").SummaryWriter(
        str(folder / "tensorboard"), purge_step=start + 1, flush_secs=_FLUSH_SECONDS
    )
    if config:
        writer.add_text("settings", _verbatim(json.dumps(config, indent=2)), start)

    def scalars(step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)

    def log_text(step: int, name: str, text: str) -> None:
        writer.add_text(name, _verbatim(text), step)

    return Tracker(name="TensorBoard", scalars=scalars, text=log_text, close=writer.close)


def wandb_tracker(folder: Path, start: int, config: Mapping[str, object]) -> Tracker:
    """Log to Weights & Biases; `WANDB_MODE=offline` writes to `folder/wandb` only."""
    wandb = optional_package("wandb", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    off = {"console": "off", "x_save_requirements": False}
    off |= dict.fromkeys(("disable_code", "disable_git", "silent", "x_disable_meta"), True)
    run = wandb.init(
        project=_PROJECT,
        name=folder.resolve().name,
        dir=str(folder),
        id=_run_id(folder, start),
        resume="allow",
        config=dict(config),
        settings=wandb.Settings(**off),
    )
    run.define_metric("*", step_metric="step")

    def scalars(step: int, values: Mapping[str, float]) -> None:
        run.log({"step": step, **values})

    def log_text(step: int, name: str, text: str) -> None:
        page = wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
        run.log({"step": step, name: page})

    return Tracker(name="Weights & Biases", scalars=scalars, text=log_text, close=run.finish)


def trackio_tracker(folder: Path, start: int, config: Mapping[str, object]) -> Tracker:
    """Log to trackio; view it with `trackio show`."""
    trackio = optional_package("trackio", "trackio")
    run = trackio.init(
        project=_PROJECT,
        name=f"{folder.resolve().name}-{_run_id(folder, start)}",
        config=dict(config),
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )

    def scalars(step: int, values: Mapping[str, float]) -> None:
        run.log(dict(values), step=step)

    def log_text(step: int, name: str, text: str) -> None:
        run.log({name: trackio.Markdown(_verbatim(text))}, step=step)

    return Tracker(name="trackio", scalars=scalars, text=log_text, close=trackio.finish)


def _verbatim(text: str) -> str:
    return textwrap.indent(text, "    ", lambda _: True)


def _run_id(folder: Path, start: int) -> str:
    """Return the id of the run of a folder; a new one unless the run resumes."""
    path = folder / "run_id"
    if start == 0 or not path.is_file():
        files.write_text(path, uuid.uuid4().hex[:8])
    return path.read_text()
