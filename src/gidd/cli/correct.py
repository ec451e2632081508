"""Find and fix tokens of a text that are unlikely under the model.

- The model must be trained with uniform noise (p_uniform > 0).
- It fixes the kind of error it was trained on, randomly replaced tokens, not typos or grammar.
- A small model such as nano finds some of these errors and fixes few: review the changes.
- A terminal shows the changed lines; a pipe gets the corrected text.
- The file is changed only with --in-place.

Examples:
  gidd correct models/nano letter.txt
  gidd correct models/nano letter.txt --in-place --protect "[0-9]+"
  gidd correct models/nano letter.txt --diff > letter.patch
  gidd correct models/nano letter.txt --error-rate 0.2     # more tokens are wrong
  gidd correct models/nano letter.txt --error-rate None    # the algorithm of the paper
  gidd correct models/nano - < letter.txt > corrected.txt
  gidd correct models/nano --text "We hold these truths to be self-evident." --live
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gidd.cli.console import CliConsole
from gidd.cli.messages import print_message
from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_options
from gidd.cli.output import (
    OutputOptions,
    decode_utf8,
    print_json,
    require_writable,
    write_html,
    write_stdout,
)
from gidd.cli.progress import show_progress
from gidd.common.allowed import SEED, field_problems
from gidd.common.files import atomic_path, remove_dead_temporaries
from gidd.errors import ConfigError, DataError
from gidd.pipeline.options import EXTERNAL_TEXT_DEFAULTS, CorrectionOptions

if TYPE_CHECKING:
    from gidd.pipeline import Correction
    from gidd.pipeline.correct import Span

_ABOUT_CONTENT = ("security.capability", "security.evm", "security.ima")
"""Extended attributes that grant rights to a program or sign its bytes: not for new content."""


@dataclass(frozen=True, kw_only=True)
class CorrectOptions:
    """Options of `gidd correct`."""

    model: ModelName
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    """Text file in UTF-8, or - for standard input."""

    text: Annotated[str | None, tyro.conf.DisallowNone] = None
    """The text itself, instead of a file."""

    in_place: bool = False
    """Replace the file by the corrected text; the write is atomic."""

    diff: bool = False
    """Print the changes as a patch (unified diff)."""

    protect: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="REGEX")
    ] = ()
    """Regular expression; matching text is never changed."""

    seed: int = 0
    """Random seed; the same seed gives the same corrections."""

    correction: Annotated[CorrectionOptions, tyro.conf.arg(name="")] = EXTERNAL_TEXT_DEFAULTS
    output: Flat[OutputOptions] = field(default_factory=OutputOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(self, seed=SEED)
        yield from self.correction.problems()


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, show and, with --in-place, write."""
    options = parse_options(CorrectOptions, "gidd correct", __doc__, arguments)
    path, text = _read(options)
    protected = _spans(options.protect, text)
    target = path.resolve() if path and options.in_place else None  # follow symbolic links
    if target is not None:
        require_writable(target, "--in-place")
    pipe = options.runtime.load(options.model)
    from gidd.pipeline.text import windows

    num_windows = len(windows(len(pipe.token_texts.encode(text, "the text")), pipe.context))
    with show_progress("correcting", pipe, num_windows, live=options.output.live) as on_step:
        correction = pipe.correct(
            text,
            protected=protected,
            seed=options.seed,
            on_step=on_step,
            record_frames=options.output.record_frames,
            options=options.correction,
        )
    replaced = False
    try:
        if target is not None:
            _replace(target, text, correction.text)
            replaced = True
    finally:  # if the file cannot be written, the result is printed
        _show(options, path, correction, replaced)
    write_html(
        options.output,
        pipe,
        correction.traces,
        title=f"Corrections of {path.name}" if path else "Corrections",
        text=correction.text,
        manifest=correction.manifest,
    )


def _read(options: CorrectOptions) -> tuple[Path | None, str]:
    """Return the file to correct, if any, and its text."""
    if (options.file is None) == (options.text is None):
        raise ConfigError(
            "give either FILE (- for standard input) or --text TEXT. "
            "Example: gidd correct models/nano letter.txt"
        )
    path = None if options.file in (None, "-") else Path(options.file)
    if options.in_place and path is None:
        raise ConfigError("--in-place needs a FILE to write to. Name one, or omit --in-place.")
    if options.text is not None:
        return path, options.text
    if path is None:
        return path, decode_utf8(sys.stdin.buffer.read(), "standard input")
    try:
        return path, decode_utf8(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error


def _spans(patterns: Sequence[str], text: str) -> list[Span]:
    spans: list[Span] = []
    for pattern in patterns:
        try:
            spans += [match.span() for match in re.finditer(pattern, text)]
        except re.error as error:
            raise ConfigError(
                f"--protect must be a regular expression, got {pattern!r}: {error}. "
                "Escape special characters with a backslash."
            ) from error
    return spans


def _replace(path: Path, before: str, after: str) -> None:
    """Write a file atomically if it is unchanged; keep its mode, owner and extended attributes.

    What cannot be kept is said in a message.
    """
    remove_dead_temporaries(path)
    if path.read_bytes() != before.encode():
        raise DataError(f"{path} changed while it was being corrected: not written. Run it again.")
    if after == before:
        return
    found = path.stat()
    with atomic_path(path, mode=0o600) as temporary:  # private until its permissions are set
        temporary.write_bytes(after.encode())
        lost = [*_copy_owner(found, temporary), *_copy_attributes(path, temporary)]
        temporary.chmod(found.st_mode & 0o777)  # without setuid and setgid
    if lost:
        print_message(f"{path}: the new file does not have these of the old one: {', '.join(lost)}")
    if found.st_nlink > 1:
        print_message(
            f"{path}: {found.st_nlink - 1} other names (hard links) of this file keep the old text."
        )


def _copy_owner(found: os.stat_result, target: Path) -> Iterator[str]:
    """Set group and owner of a file; yield what could not be set."""
    for name, owner, group in (("group", -1, found.st_gid), ("owner", found.st_uid, -1)):
        try:
            os.chown(target, owner, group)
        except PermissionError:
            yield name


def _copy_attributes(source: Path, target: Path) -> Iterator[str]:
    """Copy the extended attributes of a file; yield the names of those that could not be copied."""
    if sys.platform != "linux":
        return
    try:
        names = os.listxattr(source)
    except OSError:  # the file system has none
        return
    for name in names:
        with suppress(OSError):
            if name not in _ABOUT_CONTENT:
                os.setxattr(target, name, os.getxattr(source, name))
                continue
        yield name


def _show(
    options: CorrectOptions, path: Path | None, correction: Correction, replaced: bool
) -> None:
    from gidd.viz import diff

    changes = [diff.TextChange(r.start, r.old, r.new) for r in correction.replacements]
    if options.output.jsonl:
        print_json(
            text=correction.text,
            original=correction.original,
            replacements=[r._asdict() for r in correction.replacements],
            tokens=correction.tokens,
            confidence=correction.confidence,
            self_accuracy=correction.self_accuracy,
            calls=correction.calls,
            manifest=correction.manifest,
        )
    elif options.diff:
        name = path.name if path else "text"
        write_stdout(diff.unified(name, correction.original, correction.text))
    elif sys.stdout.isatty():
        console = CliConsole(highlight=False)
        colours = console.color_system is not None and not console.no_color
        console.print(diff.readable(correction.original, changes, colours=colours))
    elif not replaced:
        write_stdout(correction.text)
    before, after = correction.self_accuracy
    print_message(
        f"{len(changes)} of {len(correction.tokens)} tokens replaced, self-accuracy "
        f"{before:.1%} -> {after:.1%}, {correction.calls} forward passes."
    )
