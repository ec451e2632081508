"""Correct one text part by part, with a journal of what is finished."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from gidd import __version__
from gidd.cli.correct_journal import TextJournal, journal_folder, open_text_journal
from gidd.cli.correct_progress import CorrectProgress
from gidd.errors import ConfigError
from gidd.proofreading.edits import JudgedText, TextEdit

if TYPE_CHECKING:
    from gidd.pipeline import Correction, Pipeline
    from gidd.pipeline.correct import TextCorrector
    from gidd.pipeline.spans import Span
    from gidd.proofreading.channels import Channel
    from gidd.proofreading.noise_level import NoiseLevel, OnCallsDone
    from gidd.proofreading.parts import TextPart


@final
@dataclass(frozen=True, kw_only=True)
class CorrectionSettings:
    """What the correction of a text depends on, besides text and model."""

    error_rate: float | None
    min_confidence: float | None
    channel: Channel | None
    protect: tuple[str, ...]
    interactive: bool

    def protected_spans(self, text: str) -> list[Span]:
        """Return the spans of a text that match a pattern; empty matches protect nothing."""
        return [m.span() for pattern in self.protect for m in re.finditer(pattern, text)]


def require_patterns(patterns: Sequence[str]) -> None:
    """Raise `ConfigError` if a pattern is not a regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"--protect must be a regular expression, got {pattern!r}: {error}. "
                "Escape special characters with a backslash."
            ) from error


@final
@dataclass(frozen=True)
class TextRun:
    """Corrects texts with a model, one at a time."""

    pipe: Pipeline
    settings: CorrectionSettings
    progress: CorrectProgress
    is_long: bool
    """Whether there is something to resume, however short a text is."""

    def journal(self, text: str) -> AbstractContextManager[TextJournal]:
        """Open the journal of a text; one that is not kept if there is nothing to resume."""
        parts = self._corrector(text).parts(text)
        if len(parts) > 1 or self.is_long:
            return open_text_journal(self.journal_path(text), text, parts)
        return nullcontext(TextJournal(text, parts))

    def correct(self, text: str, journal: TextJournal) -> Correction:
        """Correct a text; parts that are in the journal are taken from there."""
        start = time.perf_counter()
        corrector, rate, noise = self._corrector(text), self.settings.error_rate, journal.noise
        parts = corrector.parts(text)
        if rate is None and noise is None:
            with self.progress.estimating() as report:
                noise = estimate_error_rate(corrector, text, report)
            if noise is not None:
                journal.add_noise(noise)
        if rate is None:
            rate = 0.0 if noise is None else noise.error_rate
        self._correct_parts(corrector, text, parts, rate, journal)
        judged = [journal.parts[index] for index in range(len(parts))]
        return corrector.assemble(text, judged, rate, noise, partial(self.pipe.manifest, start))

    def mark_finished(self, text: str) -> Path:
        """Record that a text is a result, so that a resumed command does not correct it again.

        Returns the journal of that text.
        """
        path = self.journal_path(text)
        with open_text_journal(path, text, ()) as journal:
            journal.add_finished()
        return path

    def journal_path(self, text: str) -> Path:
        """Return the file of a journal, by a hash of the text, the model and the settings."""
        found = hashlib.sha256(self._about)
        found.update(text.encode(errors="surrogatepass"))
        return journal_folder() / f"{found.hexdigest()}.jsonl"

    @cached_property
    def _about(self) -> bytes:
        settings, pipe = self.settings, self.pipe
        channel = settings.channel
        words = None if pipe.words is None else sorted(pipe.words.counts.items())
        about = (
            (__version__, pipe.source.get("sha256"), pipe.tokenizer.fingerprint, words),
            (str(pipe.device), pipe.precision, pipe.context, pipe.times),
            (settings.error_rate, settings.min_confidence, settings.protect, settings.interactive),
            None if channel is None else (channel.kinds, sorted(channel.substitutions.items())),
        )
        return json.dumps(about, default=dict).encode() + b"\n"

    def _correct_parts(
        self,
        corrector: TextCorrector,
        text: str,
        parts: Sequence[TextPart],
        rate: float,
        journal: TextJournal,
    ) -> None:
        with self.progress.correcting(journal.num_characters) as report:
            for index, part in enumerate(parts):
                if index not in journal.parts:
                    journal.add_part(index, correct_part_of(corrector, text, part, rate))
                    report(part.stop - part.start)

    def _corrector(self, text: str) -> TextCorrector:
        return self.pipe.corrector(
            min_confidence=self.settings.min_confidence,
            channel=self.settings.channel,
            protected=self.settings.protected_spans(text),
        )


def estimate_error_rate(
    corrector: TextCorrector, text: str, on_calls: OnCallsDone
) -> NoiseLevel | None:
    """Estimate how much of a text is wrong; None if nothing of it may be changed."""
    from gidd.sampling import run_job

    return run_job(lambda jobs: corrector.estimate(jobs, text, on_calls))


def correct_part_of(
    corrector: TextCorrector, text: str, part: TextPart, error_rate: float
) -> JudgedText:
    """Return the doubtful places of one part of a text."""
    from gidd.sampling import run_job

    return run_job(lambda jobs: corrector.correct_part(jobs, text, part, error_rate))


def with_choices(edits: Sequence[TextEdit], journal: TextJournal) -> tuple[TextEdit, ...]:
    """Return edits as a user decided; places that were skipped stay as they are."""
    chosen = ((edit, journal.choices.get(edit.start)) for edit in edits)
    return tuple(e._replace(new=e.old if new is None else new) for e, new in chosen)
