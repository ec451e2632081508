"""Find and fix mistakes in texts.

- Without --model, the packaged model `proof` is used; no network connection is needed.
- A model whose tokens are characters fixes letters that were replaced, dropped, added or swapped,
  dropped spaces, and some words in the wrong place (form for from). Names and rare words may be
  changed too: review the changes with --interactive.
- A model with other tokens fixes randomly replaced tokens, not typos.
- The model must be trained with uniform noise (p_uniform > 0).
- A terminal shows changed lines with the probability that each change is right, and doubtful places
  that are left for you. A pipe gets the corrected text.
- Files are changed only with --in-place. Interrupt at any time; the same command resumes.

Examples:
  gidd correct letter.txt
  gidd correct letter.txt --in-place --protect "[A-Z][a-z]+"
  gidd correct letter.txt --in-place --interactive
  gidd correct letter.txt --diff > letter.patch
  gidd correct - < letter.txt > corrected.txt
  gidd correct chapters/ "notes/*.md" --in-place --min-confidence 0.95
  gidd correct scan.txt --channel ocr --suggest > suggestions.jsonl
  gidd correct --text "The peopel of the Untied States" --model models/mine
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gidd.cli.correct_files import TextSource, find_sources, replace_file
from gidd.cli.correct_interactive import Review, require_terminal
from gidd.cli.correct_journal import TextJournal
from gidd.cli.correct_progress import CorrectProgress
from gidd.cli.correct_run import CorrectionSettings, TextRun, require_patterns, with_choices
from gidd.cli.correct_view import (
    count,
    is_terminal,
    print_correction,
    print_suggestions,
    show_changes,
    show_patch,
    summary,
    totals,
)
from gidd.cli.messages import print_message
from gidd.cli.model_options import Flat, ModelOptions
from gidd.cli.output import require_writable, write_stdout
from gidd.cli.parsing import parse
from gidd.common.allowed import field_problems, optional
from gidd.errors import ConfigError
from gidd.pipeline.options import ERROR_RATE, MIN_CONFIDENCE
from gidd.proofreading.channels import channel_by_name
from gidd.proofreading.edits import apply_edits

if TYPE_CHECKING:
    from gidd.pipeline import Correction

PACKAGED_MODEL = "proof"
"""The model that is part of the package."""


@dataclass(frozen=True, kw_only=True)
class CorrectOptions:
    """Options of `gidd correct`."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, folders (their .txt and .md files), patterns, or - for standard
    input."""

    text: Annotated[str | None, tyro.conf.DisallowNone] = None
    """The text itself, instead of a file."""

    model: str = PACKAGED_MODEL
    """Folder written by `gidd export`, or the name of a model; `proof` is part of the package."""

    error_rate: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Fraction of wrong tokens, e.g. 0.05; by default estimated for each text."""

    min_confidence: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Smallest probability of a change, e.g. 0.95; by default the most likely text is chosen."""

    channel: Annotated[
        str | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="keyboard|ocr|FILE")
    ] = None
    """What mistakes look like: of typing, of scanned text, or a file of `gidd channel learn`. By
    default every other character is equally likely."""

    protect: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="REGEX")
    ] = ()
    """Regular expression; matching text is never changed."""

    in_place: bool = False
    """Replace the files by the corrected texts; each write is atomic."""

    interactive: bool = False
    """Review every doubtful place in the terminal. Decisions are kept: after `q`, the same command
    resumes. Files are written at the end."""

    diff: bool = False
    """Print the changes as a patch (unified diff)."""

    suggest: bool = False
    """Print one JSON object per doubtful place, with its position in characters and alternatives
    with probabilities; no file is changed."""

    jsonl: bool = False
    """Print one JSON object per text, with all edits and settings."""

    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(
            self, error_rate=optional(ERROR_RATE), min_confidence=optional(MIN_CONFIDENCE)
        )
        if sum((self.diff, self.suggest, self.jsonl)) > 1:
            yield "diff, --suggest and --jsonl exclude each other. Give one of them."
        if self.suggest and (self.in_place or self.interactive):
            yield "suggest only prints. Omit --in-place and --interactive."


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, show and, with --in-place, write."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    command = parse(
        CorrectOptions, arguments, prog="gidd correct", description=__doc__, config=flags
    )
    if found := [problem.partition(" ") for problem in command.problems()]:
        raise ConfigError("\n".join(f"--{key.replace('_', '-')} {rest}" for key, _, rest in found))
    if command.interactive:
        require_terminal()
    require_patterns(command.protect)
    channel = None if command.channel is None else channel_by_name(command.channel)
    sources = find_sources(command.files, command.text)
    _require_targets(command, sources)
    settings = CorrectionSettings(
        error_rate=command.error_rate,
        min_confidence=command.min_confidence,
        channel=channel,
        protect=command.protect,
        interactive=command.interactive,
    )
    pipe = command.runtime.load(command.model)
    progress = CorrectProgress(len(sources), sum(source.num_characters for source in sources))
    is_long = command.interactive or len(sources) > 1
    _Command(command, sources, TextRun(pipe, settings, progress, is_long)).run()


def _require_targets(command: CorrectOptions, sources: Sequence[TextSource]) -> None:
    """Raise `ConfigError` if a result could not be written, before any work is done."""
    for source in sources:
        if command.in_place and source.path is None:
            raise ConfigError("--in-place needs a FILE to write to. Name one, or omit --in-place.")
        if command.in_place and source.path is not None:
            require_writable(source.path.resolve(), "--in-place")
    is_written = command.in_place or command.diff or command.suggest or command.jsonl
    if len(sources) > 1 and not is_written and not is_terminal():
        raise ConfigError(
            f"{len(sources)} texts cannot be printed one after the other. Add --in-place, --diff, "
            "--suggest or --jsonl, or name one FILE."
        )


class _Command:
    """Corrects all texts of a command; journals are kept until the last one is done."""

    def __init__(
        self, command: CorrectOptions, sources: Sequence[TextSource], run: TextRun
    ) -> None:
        self.command, self.sources, self.texts = command, sources, run
        self._start = time.perf_counter()
        self._journals: set[Path] = set()

    def run(self) -> None:
        """Correct, review and show each text, then remove the journals."""
        corrections: list[Correction] = []
        for source in self.sources:
            text = source.read()
            with self.texts.journal(text) as journal:
                self._journals.add(self.texts.journal_path(text))
                if journal.is_finished:
                    print_message(f"{source.name} is corrected already, by an interrupted command.")
                    self.texts.progress.skip(source.num_characters)
                    continue
                correction = self._correct(source, text, journal)
                if correction is None:
                    return
                self._finish(source, correction, journal)
            corrections.append(replace(correction, text="", original=""))
        if len(self.sources) > 1:
            seconds = time.perf_counter() - self._start
            print_message(f"{count(len(corrections), 'file')}: {totals(corrections, seconds)}")
        for path in self._journals:
            _remove(path)

    def _correct(self, source: TextSource, text: str, journal: TextJournal) -> Correction | None:
        """Return the correction of a text; None if its review was stopped by the user."""
        if journal.num_characters or journal.choices:
            print_message(
                f"{source.name}: resuming an interrupted correction at "
                f"{journal.num_characters / len(text):.0%}."
            )
        start = time.perf_counter()
        try:
            correction = self.texts.correct(text, journal)
            if self.command.interactive:
                if not Review(source.name, text).run(correction.edits, journal):
                    print_message(
                        f"{len(journal.choices):,} of {len(correction.edits):,} places are decided "
                        "and kept. The same command resumes; no file was changed."
                    )
                    return None
                edits = with_choices(correction.edits, journal)
                correction = replace(correction, edits=edits, text=apply_edits(text, edits))
        except KeyboardInterrupt:
            if journal.is_kept and (journal.num_characters or journal.choices):
                print_message(
                    f"{journal.num_characters / len(text):.0%} of {source.name} is done and kept. "
                    "The same command resumes."
                )
            raise
        self._seconds = time.perf_counter() - start
        return correction

    def _finish(self, source: TextSource, correction: Correction, journal: TextJournal) -> None:
        replaced = False
        try:
            if self.command.in_place and source.path is not None:
                if journal.is_kept and correction.text != correction.original:
                    # before the file is replaced: if this is killed, the corrected text must not
                    # be corrected again
                    self._journals.add(self.texts.mark_finished(correction.text))
                target = source.path.resolve()  # follow symbolic links
                replace_file(target, correction.original, correction.text)
                replaced = True
                _remove(self.texts.journal_path(correction.original))
        finally:  # if the file cannot be written, the result is printed
            self._show(source, correction, replaced)

    def _show(self, source: TextSource, correction: Correction, replaced: bool) -> None:
        command, alone = self.command, len(self.sources) == 1
        if command.jsonl:
            print_correction(source.name, correction)
        elif command.suggest:
            print_suggestions(source.name, correction)
        elif command.diff:
            show_patch(source.path, correction, alone=alone)
        elif is_terminal() and not (command.interactive and not replaced):
            show_changes(None if alone else source.name, correction)
        elif not replaced:
            write_stdout(correction.text)
        name = "" if alone else f"{source.name}: "
        print_message(f"{name}{summary(correction, self._seconds)}")


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
