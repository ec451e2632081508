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
  gidd correct --model models/nano --text "The Government of the United pe is at peace."
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from gidd.cli.corrections import (
    matching_spans,
    print_correction,
    read_sources,
    replace_file,
    require_patterns,
    show_changes,
    show_patch,
    summary,
)
from gidd.cli.model_options import Flat, ModelOptions, parse_checked
from gidd.cli.output import write_stdout
from gidd.common.config.allowed import field_problems, optional
from gidd.common.messages import print_message, show_counts
from gidd.errors import DataError
from gidd.pipeline.options import ERROR_RATE, MIN_CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class CorrectCommand:
    """Options of `gidd correct`."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, or - for standard input."""

    model: str
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    text: Annotated[str | None, tyro.conf.DisallowNone] = None
    """The text itself, instead of a file."""

    error_rate: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Fraction of wrong tokens, e.g. 0.05; by default estimated for each text."""

    min_confidence: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Smallest probability of a change, e.g. 0.95; by default the most likely text is chosen."""

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
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(
            self, error_rate=optional(ERROR_RATE), min_confidence=optional(MIN_CONFIDENCE)
        )
        if self.diff and self.jsonl:
            yield "diff and --jsonl exclude each other. Give one of them."


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, write with --in-place, and show."""
    command = parse_checked(CorrectCommand, "gidd correct", __doc__, arguments)
    require_patterns(command.protect)
    sources = read_sources(
        command.files,
        command.text,
        in_place=command.in_place,
        is_printed=command.diff or command.jsonl,
    )
    pipe = command.runtime.load(command.model)
    for source in sources:
        start = time.perf_counter()
        with show_counts("correcting") as on_progress:
            correction = pipe.correct(
                source.text,
                error_rate=command.error_rate,
                min_confidence=command.min_confidence,
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
        elif not command.in_place:
            write_stdout(correction.text)
        name = "" if alone else f"{source.name}: "
        print_message(f"{name}{summary(correction, time.perf_counter() - start)}")
