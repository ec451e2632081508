"""Find and fix wrong tokens in texts.

- Each token is scored by its posterior probability at the error rate of the text. This fixes
  randomly replaced tokens; for typos, install the distribution gidd-proof.
- The model must be trained with uniform noise (p_uniform > 0).
- A terminal shows changed lines with the probability that each change is right, and doubtful places
  that are left for you. A pipe gets the corrected text.
- Files are changed only with --in-place.

Examples:
  gidd correct letter.txt --model models/nano
  gidd correct letter.txt --model models/nano --in-place --protect "[0-9]+"
  gidd correct letter.txt --model models/nano --diff > letter.patch
  gidd correct - --model models/nano < letter.txt > corrected.txt
  gidd correct --model nano --text "Tom ate the sun with a spoon."
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from gidd.cli.model_options import Flat, ModelOptions, parse_checked
from gidd.cli.output import (
    CliConsole,
    decode_utf8,
    plain,
    print_json,
    print_text,
    require_writable,
    write_stdout,
)
from gidd.common.files import atomic_path, read_regular, remove_dead_temporaries
from gidd.common.messages import print_message, show_counts
from gidd.errors import ConfigError, DataError
from gidd.pipeline.options import WrongTokens
from gidd.sampling.ranges import ERROR_RATE, MIN_CONFIDENCE

if TYPE_CHECKING:
    from gidd.pipeline import Correction, Span


@dataclass(frozen=True, kw_only=True)
class CorrectCommand:
    """Options of `gidd correct`."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, or - for standard input."""
    model: str
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""
    text: str | None = None
    """The text itself, instead of a file."""
    error_rate: Annotated[float, ERROR_RATE] | None = None
    """Fraction of wrong tokens, e.g. 0.05; by default estimated for each text."""
    min_confidence: Annotated[float, MIN_CONFIDENCE] | None = None
    """Smallest probability of a change, e.g. 0.95; by default the most likely text is chosen."""
    wrong_tokens: WrongTokens | None = None
    """Which tokens are written by mistake: those of the model's noise, or each as often as it
    occurs; by default as the model recommends, else noise."""
    protect: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="REGEX")
    ] = ()
    """Regular expression; matching text is never changed."""
    in_place: bool = False
    """Replace the files by the corrected texts; each write is atomic."""
    diff: bool = False
    """Print the changes as a patch (unified diff)."""
    jsonl: bool = False
    """Print one JSON object per text, with all edits and settings."""
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield a message if two ways to print are chosen."""
        if self.diff and self.jsonl:
            yield "diff and --jsonl exclude each other. Give one of them."


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, write with --in-place, and show."""
    command = parse_checked(CorrectCommand, "gidd correct", __doc__, arguments)
    require_patterns(command.protect)
    how = {"in_place": command.in_place, "is_printed": command.diff or command.jsonl}
    sources = read_sources(command.files, command.text, **how)
    pipe = command.runtime.load(command.model)
    for source in sources:
        start = time.perf_counter()
        with show_counts("correcting") as on_progress:
            correction = pipe.correct(
                source.text,
                error_rate=command.error_rate,
                min_confidence=command.min_confidence,
                wrong_tokens=command.wrong_tokens,
                protected=matching_spans(command.protect, source.text),
                on_progress=on_progress,
            )
        try:
            if command.in_place and source.path is not None:
                replace_file(source.path, source.text, correction.text)
        except (OSError, DataError):
            write_stdout(correction.text)  # the work is not lost
            raise
        alone = len(sources) == 1
        if command.jsonl:
            print_correction(source.name, correction)
        elif command.diff:
            show_patch(source, correction, alone=alone)
        elif sys.stdout.isatty():
            show_changes(None if alone else source.name, correction)
        elif command.text is not None:
            print_text(correction.text)
        elif not command.in_place:
            write_stdout(correction.text)
        name = "" if alone else f"{source.name}: "
        print_message(f"{name}{summary(correction, time.perf_counter() - start)}")


class TextSource(NamedTuple):
    """A text to correct, and the file that it is from."""

    name: str
    path: Path | None
    text: str


def read_sources(
    files: Sequence[str], text: str | None, *, in_place: bool, is_printed: bool
) -> list[TextSource]:
    """Read the texts as `read_texts` does; raise `ConfigError` if a result could not be written.

    Several texts on standard output need `is_printed`: a form that can be told apart.
    """
    if in_place and (text is not None or "-" in files):
        raise ConfigError("--in-place needs a FILE to write to. Name one, or omit --in-place.")
    by_file: dict[Path | None, TextSource] = {}
    for source in read_texts(files, text):
        by_file.setdefault(source.path and source.path.resolve(), source)
    sources = list(by_file.values())
    for source in sources:
        if in_place and source.path is not None:
            require_writable(source.path.resolve(), "--in-place")
    if len(sources) > 1 and not (in_place or is_printed or sys.stdout.isatty()):
        fix = "Add --in-place, --diff or --jsonl, or name one FILE."
        raise ConfigError(f"{len(sources)} texts cannot be printed one after the other. {fix}")
    return sources


def read_texts(files: Sequence[str], text: str | None) -> list[TextSource]:
    """Read the text of --text, or the texts of files and of standard input (-)."""
    if bool(files) == (text is not None):
        raise ConfigError("give either FILE (- for standard input) or --text TEXT.")
    if files.count("-") > 1:
        raise ConfigError("FILE must be - at most once: standard input is read once.")
    return [TextSource("the text", None, text)] if text is not None else [*map(read_source, files)]


def read_source(name: str) -> TextSource:
    """Read the text of a regular file, or of standard input (-)."""
    if name == "-":
        content = sys.stdin.buffer.read()
        return TextSource("standard input", None, decode_utf8(content, "standard input"))
    path, remedy = Path(name), "Use - to read standard input."
    try:
        name.encode()
        return TextSource(
            name, path, decode_utf8(read_regular(path, DataError, None, remedy), name)
        )
    except UnicodeEncodeError as error:
        raise DataError(f"FILE must have a name in UTF-8, got {name!r}. Rename it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Check the path.") from error


def matching_spans(patterns: Sequence[str], text: str) -> list[Span]:
    """Return the spans of a text that match a regular expression of --protect."""
    return [match.span() for pattern in patterns for match in re.finditer(pattern, text)]


def require_patterns(patterns: Sequence[str]) -> None:
    """Raise `ConfigError` if a pattern is not a regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            problem = f"--protect must be a regular expression, got {pattern!r}: {error}."
            raise ConfigError(problem) from error


def replace_file(path: Path, before: str, after: str) -> None:
    """Write a file atomically if it still has the text `before`; keep its mode and owner."""
    path = path.resolve()  # follow symbolic links
    remove_dead_temporaries(path)
    if path.read_bytes() != before.encode():
        raise DataError(f"{path} changed while it was being corrected: not written. Run it again.")
    if after == before:
        return
    status = path.stat()
    with atomic_path(path, mode=0o600) as temporary:  # private until its permissions are set
        temporary.write_bytes(after.encode())
        with suppress(PermissionError, AttributeError):  # only root gives files away
            os.chown(temporary, status.st_uid, status.st_gid)
        temporary.chmod(status.st_mode & 0o777)  # without setuid and setgid


def show_changes(name: str | None, correction: Correction) -> None:
    """Print the lines with changes and doubtful places, after the name of the file, if given."""
    from gidd.viz import diff

    console = CliConsole(highlight=False)
    colours = console.color_system is not None and not console.no_color
    changes: list[diff.TextChange] = []
    for edit in correction.edits:
        if edit.is_change:
            note = percent(edit.confidence) if edit.confidence else ""
        else:  # the most likely other text
            note = f"{edit.best_other}? {percent(edit.probability_of(edit.best_other))}"
        changes.append(diff.TextChange(edit.start, edit.old, edit.new, note))
    if name is not None:
        console.print(plain(name), style="bold")
    if changes:
        console.print(diff.readable(correction.original, changes, colours=colours))


def percent(probability: float) -> str:
    """Return a probability in per cent; only certainty is 100%."""
    return "100%" if probability == 1 else f"{min(probability, 0.99):.0%}"


def show_patch(source: TextSource, correction: Correction, *, alone: bool) -> None:
    """Print the changes as a unified diff; of several files, each is named by its path."""
    from gidd.viz import diff

    path = source.path
    name = "text" if path is None else path.name if alone else path.as_posix().lstrip("/")
    write_stdout(diff.unified(name, correction.original, correction.text))


def print_correction(name: str, correction: Correction) -> None:
    """Print a correction as one line of JSON."""
    names = ("text", "original", "edits", "error_rate", "noise_level", "forward_passes", "manifest")
    values = {key: getattr(correction, key) for key in names}
    values["edits"], noise = list(describe_edits(correction)), correction.noise_level
    if noise is not None:  # that of a proofreader has no time
        noise_time = None if math.isnan(noise.time) else noise.time
        values["noise_level"] = noise._asdict() | {"time": noise_time}
    print_json(file=name, **values)


def describe_edits(correction: Correction) -> Iterator[dict[str, Any]]:
    """Yield each place that may be wrong as plain data, with line and column from 1."""
    starts = line_starts(correction.original)
    for edit in correction.edits:
        line, column = place_of(starts, edit.start)
        place = {"start": edit.start, "stop": edit.stop, "line": line, "column": column}
        texts = {"old": edit.old, "new": edit.new, "change": edit.is_change}
        yield place | texts | {"alternatives": [a._asdict() for a in edit.alternatives]}


def line_starts(text: str) -> list[int]:
    """Return the index of the first character of each line; lines end with a line feed."""
    starts = [0]
    while place := text.find("\n", starts[-1]) + 1:
        starts.append(place)
    return starts


def place_of(starts: Sequence[int], index: int) -> tuple[int, int]:
    """Return line and column of a character, both from 1."""
    line = bisect_right(starts, index)
    return line, index - starts[line - 1] + 1


def summary(correction: Correction, seconds: float) -> str:
    """Return the figures of a correction in a line."""
    noise, changes = correction.noise_level, len(correction.changes)
    rate = f"{correction.error_rate:.1%} wrong as given"
    if noise is not None:
        rate = f"estimated {noise.error_rate:.1%} wrong ({100 * noise.low:.1f}-{noise.high:.1%})"
    return (
        f"{rate}, {changes:,} change{'' if changes == 1 else 's'}, "
        f"{len(correction.suggestions):,} left for you, "
        f"{correction.forward_passes:,} forward passes, {seconds:,.0f} s"
    )
