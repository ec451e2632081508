"""What `gidd sample`, `gidd infill` and `gidd correct` share: options, progress and output."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gidd.errors import ConfigError, DataError
from gidd.pipeline import Generation, Pipeline, SamplingOptions, Trace, from_pretrained
from gidd.sampling import OnStep, StepEvent
from gidd.viz.html import Replay, write_page
from gidd.viz.terminal import CanvasView, printable


@dataclass(frozen=True, kw_only=True)
class Display:
    """How a model is run, and how the result is shown."""

    live: bool = False
    """Show the text coming about, live in the terminal."""

    html: Path | None = None
    """Write a page that shows every step; it is one file and needs no connection."""

    jsonl: bool = False
    """Print one JSON object per text, for programs."""

    device: Literal["cpu", "cuda", "mps"] | None = None
    """What to compute on; by default the fastest there is."""

    precision: Literal["float32", "bf16"] = "float32"
    """Of the network's body."""

    tokenizer: str | None = None
    """If the model brings none: gpt2, a tokenizer.json, a folder with one, or a name on the hub."""

    @property
    def record_frames(self) -> bool:
        """Whether the network's opinion is wanted at every move."""
        return self.live or self.html is not None

    def open(self, model: str) -> Pipeline:
        """The model; what there is to say about it goes to stderr."""
        if self.live and not sys.stderr.isatty():
            raise ConfigError(
                "--live draws on a terminal, and stderr is none. Leave it out; --html FILE writes "
                "a page that shows every step."
            )
        if self.html is not None:
            require_writable(self.html, "--html")
        pipe = from_pretrained(
            model, device=self.device, precision=self.precision, tokenizer=self.tokenizer
        )
        for note in pipe.notes:
            print(f"gidd: {note}", file=sys.stderr)
        return pipe


@dataclass(frozen=True, kw_only=True)
class TextCommandOptions:
    """Options of the commands that write texts."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A folder that `gidd export` wrote, or a name on the Hugging Face hub."""

    num_samples: int = 1
    """Number of texts."""

    seed: int = 0
    """The same seed gives the same texts."""

    start_index: int = 0
    """Number of the first text: `--start-index 5` gives the sixth text of `--num-samples 6` alone."""

    sampling: Annotated[SamplingOptions, tyro.conf.arg(name="")] = field(
        default_factory=SamplingOptions
    )
    display: Annotated[Display, tyro.conf.arg(name="")] = field(default_factory=Display)


@contextmanager
def progress(display: Display, pipe: Pipeline, num_sequences: int) -> Generator[OnStep | None]:
    """What to call after every move; it draws on stderr, and only if that is a terminal."""
    console = Console(stderr=True)
    if display.live:
        mask_id = pipe.schedule.vocab.mask_id
        with CanvasView(console, pipe.token_texts, mask_id, num_sequences) as view:
            yield view
    elif console.is_terminal:
        columns = (
            TextColumn("sampling"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield _Bar(bar, num_sequences)
    else:
        yield None


class _Bar:
    """Counts the moves of all sequences; those that were not needed count as made."""

    def __init__(self, bar: Progress, num_sequences: int) -> None:
        self._bar, self._task = bar, bar.add_task("", total=None)
        self._num_sequences = num_sequences
        self._steps_done: dict[int, int] = {}

    def __call__(self, event: StepEvent) -> None:
        indices: list[int] = event.canvas.step_index.tolist()
        self._steps_done.update(zip(event.members, indices, strict=True))
        total = self._num_sequences * int(event.num_steps.max())
        self._bar.update(self._task, completed=sum(self._steps_done.values()), total=total)


def show_generations(
    display: Display, pipe: Pipeline, generations: Sequence[Generation], *, title: str
) -> None:
    """Texts on stdout, and the page if it was asked for: later, as it may fail."""
    for number, generation in enumerate(generations, start=1):
        if display.jsonl:
            print_json(
                text=generation.text,
                filled=generation.filled,
                tokens=generation.tokens,
                confidence=generation.confidence,
                calls=generation.calls,
                edits=[edit._asdict() for edit in generation.trace.edits],
                manifest=generation.manifest,
            )
            continue
        if len(generations) > 1:
            print(f"--- {number} of {len(generations)}", flush=True)
        print_text(generation.text)
    write_html(
        display,
        pipe,
        [generation.trace for generation in generations],
        kind="sample",
        title=title,
        text="\n\n".join(generation.text for generation in generations),
        manifest=generations[0].manifest,
    )


def write_html(
    display: Display,
    pipe: Pipeline,
    traces: Sequence[Trace],
    *,
    kind: Literal["sample", "correct"],
    title: str,
    text: str,
    manifest: dict[str, Any],
) -> None:
    """The page, if it was asked for."""
    if display.html is None:
        return
    phases = ", ".join(f"{phase['steps']} × {phase['step']}" for phase in manifest["plan"])
    name = manifest["model"].get("name", "")
    write_page(
        display.html,
        [
            Replay(f"{number} of {len(traces)}", trace.frames, trace.protected)
            for number, trace in enumerate(traces, start=1)
        ],
        pipe.token_texts,
        pipe.schedule.vocab.mask_id,
        kind=kind,
        title=title,
        about=f"{name} · {phases} · seed {manifest['seed']}",
        text=text,
        manifest=manifest,
    )
    print(f"gidd: {display.html} shows every step.", file=sys.stderr)


def require_writable(path: Path, option: str) -> None:
    """Refuse, before any work is done, a file that could not be written after it.

    Args:
        path: The file, which may exist or not; folders that it needs are made later.
        option: Who wants to write it, for the message.
    """
    if problem := _obstacle(path):
        raise ConfigError(
            f"{option} needs a file that can be written, got {path}: {problem}. Name another file, "
            "or change the permissions."
        )


def _obstacle(path: Path) -> str | None:
    try:
        if path.exists():
            if not path.is_file():
                return "it is not a regular file"
            path.open("r+b").close()  # one that is protected is meant to stay as it is
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        with TemporaryFile(dir=folder):  # files are written beside the old one and renamed
            return None
    except OSError as error:
        return error.strerror


def read_input(content: bytes, name: str) -> str:
    """The text of a file, whose every byte must come back."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} must be UTF-8 text, got bytes that are not: {error.reason} at byte "
            f"{error.start}. Convert it, with iconv say."
        ) from error


def print_text(text: str) -> None:
    """A text and a line break."""
    write_text(text if text.endswith("\n") else text + "\n")


def write_text(text: str) -> None:
    """As it is, or without control characters if a terminal would obey them."""
    shown = printable(text) if sys.stdout.isatty() else text
    sys.stdout.flush()
    sys.stdout.buffer.write(shown.encode())
    sys.stdout.buffer.flush()


def print_json(**fields: Any) -> None:
    """One line."""
    print(json.dumps(fields, allow_nan=False), flush=True)
