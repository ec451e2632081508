"""Output of the commands: text and JSON on stdout, HTML pages; input and target files."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from gidd.common.messages import print_message
from gidd.common.terminal import printable
from gidd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from gidd.cli.model_options import TextCommandOptions
    from gidd.pipeline import Generation, Pipeline


class CliConsole(Console):
    """Standard output for tables and colours."""

    def on_broken_pipe(self) -> None:
        """Leave it to `gidd.cli.main`: Rich would end the program with status 1."""
        raise BrokenPipeError


def plain(text: str) -> Text:
    """Return text from outside as it may be shown: no control characters, markup or emoji names."""
    return Text(printable(text))


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How samples are shown."""

    live: bool = False
    """Show every step live in the terminal."""
    html: Path | None = None
    """Write an HTML page that replays every step; a single file that works offline."""
    jsonl: bool = False
    """Print one JSON object per line, with tokens and settings."""
    confidence: bool = False
    """With --jsonl: include the probability of each token of the final text, which takes a forward
    pass per sample."""
    edits: bool = False
    """With --jsonl: include every change of a token, with its step and probability."""

    @property
    def record_frames(self) -> bool:
        """Whether the prediction at every step is needed."""
        return self.live or self.html is not None

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        for name in ("edits", "confidence"):
            if getattr(self, name) and not self.jsonl:
                yield f"{name} needs --jsonl: it is part of the JSON output."
        if self.live and not sys.stderr.isatty():
            yield "live needs a terminal, and stderr is not one. Use --html FILE."
        yield from write_problems("html", self.html)


def show_samples(
    options: TextCommandOptions, pipe: Pipeline, generations: Sequence[Generation], title: str
) -> None:
    """Print the samples, then write the page: writing it may fail."""
    output = options.output
    for index, generation in enumerate(generations, start=1):
        if output.jsonl:
            names = ("text", "filled", "tokens", "confidence", "forward_passes")
            row: dict[str, Any] = {name: getattr(generation, name) for name in names}
            if generation.log_probability is not None:
                row["log_probability"] = generation.log_probability
                row["log_constraint"] = generation.log_constraint
            if output.edits:
                row["edits"] = [edit._asdict() for edit in generation.trace.edits]
            print_json(**row, manifest=generation.manifest)
            continue
        if len(generations) > 1:
            print_text(f"--- {index} of {len(generations)}")
        print_text(generation.text)
    if output.html is not None:
        _write_page(output.html, pipe, generations, title)


def _write_page(path: Path, pipe: Pipeline, generations: Sequence[Generation], title: str) -> None:
    from gidd.viz.html import Replay, write_page

    manifest = generations[0].manifest
    phases = ", ".join(f"{phase['steps']} × {phase['step']}" for phase in manifest["plan"])
    name = manifest["model"].get("name", "")
    replays = [
        Replay(f"{i} of {len(generations)}", generation.trace.frames, generation.trace.protected)
        for i, generation in enumerate(generations, start=1)
    ]
    write_page(
        path,
        replays,
        pipe.decoder,
        pipe.schedule.vocab.mask_id,
        kind="sample",
        title=title,
        about=f"{name} · {phases} · seed {manifest['seed']}",
        text="\n\n".join(generation.text for generation in generations),
        manifest=manifest,
    )
    print_message(f"wrote {path}, a page that replays every step.")


def require_writable(path: Path, option: str) -> None:
    """Raise `ConfigError` if the file of an option could not be written, before any work."""
    for problem in write_problems(option, path):
        raise ConfigError(problem)


def write_problems(option: str, path: Path | None) -> Iterable[str]:
    """Yield a message if a file could not be written; it and its folders need not exist yet."""
    try:
        if path is not None and path.exists():
            if not path.is_file():
                raise OSError(errno.EINVAL, "it is not a regular file")
            path.open("r+b").close()  # renaming would replace a read-only file
        if path is not None:
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            TemporaryFile(dir=folder).close()  # atomic writes need a temporary file in the folder
    except OSError as error:
        yield f"{option} must name a file that can be written, got {path}: {error.strerror}."


def decode_utf8(content: bytes, name: str) -> str:
    """Return the text of a file; `DataError` if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise DataError(f"{name} must be UTF-8 text, got other bytes: {where}.") from error


def print_text(text: str) -> None:
    """Write a text and a line break to stdout."""
    write_stdout(text if text.endswith("\n") else text + "\n")


def write_stdout(text: str) -> None:
    """Write a text to stdout; control characters are removed if that is a terminal.

    Elsewhere every byte is written, also bytes of file names that are not UTF-8.
    """
    shown = printable(text) if sys.stdout.isatty() else text
    sys.stdout.flush()
    sys.stdout.buffer.write(shown.encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


def print_json(**fields: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(fields, allow_nan=False), flush=True)
