"""Find and mend wrong words of a text, as the model sees it.

A terminal shows the lines that were changed, old in red and new in green; a pipe gets the corrected
text. The file itself is changed with --in-place alone.

Examples:
  gidd correct models/nano letter.txt
  gidd correct models/nano letter.txt --in-place --protect "[0-9]+"
  gidd correct models/nano letter.txt --diff > letter.patch
  gidd correct models/nano letter.txt --error-rate 0.2    # much is wrong in it; None: the paper's way
  gidd correct models/nano - < letter.txt > corrected.txt
  gidd correct models/nano --text "We is a nation of laws." --live
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.console import CliConsole
from gidd.cli.model_options import (
    Display,
    print_json,
    progress,
    read_input,
    require_writable,
    write_html,
    write_text,
)
from gidd.common.files import atomic_path
from gidd.errors import ConfigError, DataError
from gidd.pipeline import Correction, CorrectionOptions
from gidd.pipeline.correct import Span
from gidd.pipeline.options import EXTERNAL_TEXT_DEFAULTS
from gidd.pipeline.windows import windows
from gidd.viz import diff


@dataclass(frozen=True, kw_only=True)
class CorrectOptions:
    """CorrectOptions of `gidd correct`."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A folder that `gidd export` wrote, or a name on the Hugging Face hub."""

    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """The text file, in UTF-8, or - for standard input."""

    text: str | None = None
    """The text itself, in place of a file."""

    in_place: bool = False
    """Write the corrections into the file. It is replaced at once, or not at all."""

    diff: bool = False
    """Print the change as a patch."""

    protect: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A regular expression; what it matches is never changed. May be given several times."""

    seed: int = 0
    """The same seed gives the same corrections."""

    correction: Annotated[CorrectionOptions, tyro.conf.arg(name="")] = EXTERNAL_TEXT_DEFAULTS
    display: Annotated[Display, tyro.conf.arg(name="")] = field(default_factory=Display)


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, show and, if asked to, write."""
    options = tyro.cli(
        CorrectOptions, prog="gidd correct", description=__doc__, args=list(arguments)
    )
    path = _path(options)
    text = _text(options, path)
    kept = _spans(options.protect, text)
    target = path.resolve() if path and options.in_place else None  # what a link points to
    if target is not None:
        require_writable(target, "--in-place")
    pipe = options.display.open(options.model)
    num_windows = len(windows(len(pipe.token_texts.encode(text, "the text")), pipe.context))
    with progress(options.display, pipe, num_windows) as on_step:
        correction = pipe.correct(
            text,
            protected=kept,
            seed=options.seed,
            on_step=on_step,
            record_frames=options.display.record_frames,
            options=options.correction,
        )
    replaced = False
    try:
        if target is not None:
            _replace(target, text, correction.text)
            replaced = True
    finally:  # what cannot be written is not lost
        _show(options, path, correction, replaced)
    write_html(
        options.display,
        pipe,
        correction.traces,
        kind="correct",
        title=f"Corrections of {path.name}" if path else "Corrections",
        text=correction.text,
        manifest=correction.manifest,
    )


def _path(options: CorrectOptions) -> Path | None:
    if (options.file is None) == (options.text is None):
        raise ConfigError(
            "give either a FILE (or - for standard input) or --text TEXT, and not both. "
            "Example: gidd correct models/nano letter.txt"
        )
    path = None if options.file in (None, "-") else Path(options.file)
    if options.in_place and path is None:
        raise ConfigError("--in-place needs a FILE to write to. Name one, or leave it out.")
    return path


def _text(options: CorrectOptions, path: Path | None) -> str:
    if options.text is not None:
        return options.text
    if path is None:
        return read_input(sys.stdin.buffer.read(), "standard input")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    return read_input(content, str(path))


def _spans(patterns: Sequence[str], text: str) -> list[Span]:
    spans: list[Span] = []
    for pattern in patterns:
        try:
            spans += [match.span() for match in re.finditer(pattern, text)]
        except re.error as error:
            raise ConfigError(
                f"--protect must be a regular expression, got {pattern!r}: {error}. "
                "Put a backslash before signs that are meant as they are."
            ) from error
    return spans


def _replace(path: Path, before: str, after: str) -> None:
    """Write a file that is still as it was read, keeping its permissions and, if we may, owner."""
    if path.read_bytes() != before.encode():
        raise DataError(f"{path} was changed meanwhile, so it is left alone. Correct it again.")
    if after == before:
        return
    found = path.stat()
    with atomic_path(path) as beside:
        beside.touch(mode=0o600)  # nobody reads it before its permissions are set
        beside.write_bytes(after.encode())
        for owner, group in ((-1, found.st_gid), (found.st_uid, -1)):
            with suppress(PermissionError):
                os.chown(beside, owner, group)
        beside.chmod(found.st_mode & 0o777)  # not the bits that lend the owner's rights


def _show(
    options: CorrectOptions, path: Path | None, correction: Correction, replaced: bool
) -> None:
    changes = [diff.Change(r.start, r.old, r.new) for r in correction.replacements]
    before, after = correction.self_accuracy
    summary = (
        f"{len(changes)} of {len(correction.tokens)} tokens replaced, self-accuracy {before:.1%} "
        f"-> {after:.1%}, {correction.calls} network calls"
    )
    if options.display.jsonl:
        print_json(
            text=correction.text,
            replacements=[r._asdict() for r in correction.replacements],
            tokens=correction.tokens,
            confidence=correction.confidence,
            self_accuracy=correction.self_accuracy,
            calls=correction.calls,
            manifest=correction.manifest,
        )
    elif options.diff:
        name = path.name if path else "text"
        write_text(diff.unified(name, correction.original, changes))
    elif sys.stdout.isatty():
        console = CliConsole(highlight=False)
        colours = console.color_system is not None and not console.no_color
        console.print(diff.readable(correction.original, changes, colours=colours))
    elif not replaced:
        write_text(correction.text)
    print(f"gidd: {summary}.", file=sys.stderr)
