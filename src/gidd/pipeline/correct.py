"""Correction of a text that was given, part by part.

A part is a few thousand characters with their context: it is corrected by itself, so memory does
not depend on the length of a text, and a long correction can be interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast, final

from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.pipeline.calls import CallPhases
from gidd.pipeline.loaded_model import LoadedModel
from gidd.pipeline.proofreaders import Proofreaders
from gidd.pipeline.results import Correction, ResultManifest
from gidd.pipeline.spans import Span, protected_tokens, require_spans
from gidd.pipeline.text import EncodedText
from gidd.proofreading.channels import Channel, channel_by_name
from gidd.proofreading.edit_costs import EditCosts
from gidd.proofreading.edits import JudgedText, apply_edits
from gidd.proofreading.noise_level import MAX_WINDOWS, NoiseLevel, OnCallsDone, estimate_noise
from gidd.proofreading.parts import TextPart, parts_of, spread_parts
from gidd.proofreading.places import LEAST_MISTAKE_RATE, CountedPart, Mistakes, estimate_mistakes
from gidd.proofreading.proofreader import Proofreader
from gidd.proofreading.window_reader import TextWindows
from gidd.sampling.jobs import Jobs, run_jobs

_FIRST_WINDOWS = 6
"""Windows of a text that its noise level is read off, if mistakes are counted after that."""

_ESTIMATE_CHARACTERS, _ESTIMATE_PARTS = 384, 8
"""Size and number of the parts of a text that its mistakes are counted in."""

_CALLS_PER_PART = 10
"""Windows that take about as long as counting the mistakes of a part."""

_FIRST_RATES = 0.01, 0.1
"""Mistakes per character with which counting begins: not less, not more."""

OnCharacters = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


class CorrectSettings(TypedDict, total=False):
    """Settings of `Pipeline.correct`."""

    error_rate: float | None
    min_confidence: float | None
    channel: Channel | str | Path | None
    on_progress: OnCharacters | None


@final
@dataclass(frozen=True)
class TextCorrector:
    """Finds mistakes in texts of any length.

    With a model whose tokens are characters and that has a list of words, words are judged as a
    whole (`Proofreader`), and letters may be added, dropped and exchanged. Otherwise each token is
    judged by its posterior (`TokenProofreader`), and the number of tokens does not change.

    Its methods are jobs: several texts that are corrected at once share forward passes, and
    `gidd.sampling.run_job(lambda jobs: corrector.estimate(jobs, text))` runs one alone.
    """

    proofreaders: Proofreaders
    min_confidence: float | None = None
    protected: tuple[Span, ...] = ()

    @property
    def model(self) -> LoadedModel:
        """The model."""
        return self.proofreaders.model

    @property
    def channel(self) -> Channel | None:
        """What mistakes look like."""
        return self.proofreaders.channel

    async def noise_level(
        self,
        jobs: Jobs,
        text: str,
        on_calls: OnCallsDone | None = None,
        max_windows: int = MAX_WINDOWS,
    ) -> NoiseLevel | None:
        """Estimate the fraction of wrong tokens; None if no token may be changed."""
        given = self.model.encode_given(text, "the text to correct")
        fixed = protected_tokens(given, self.protected)
        if all(fixed):
            return None
        cut = TextWindows(given.tokens, fixed, self.model.context)
        return await estimate_noise(
            jobs,
            self.model.reader,
            cut,
            channel=self.proofreaders.table,
            on_calls=on_calls,
            max_windows=max_windows,
        )

    async def estimate(
        self, jobs: Jobs, text: str, on_calls: OnCallsDone | None = None
    ) -> NoiseLevel | None:
        """Estimate the error rate that `correct` uses; None if no token may be changed.

        If words are judged, it is the number of mistakes per character, also of letters that were
        added or dropped, which the noise level cannot count. It begins with the noise level.
        """
        if self.proofreaders.words is None:
            return await self.noise_level(jobs, text, on_calls)
        parts = spread_parts(text, _ESTIMATE_CHARACTERS, _ESTIMATE_PARTS)
        phases = CallPhases(on_calls, 1, _CALLS_PER_PART * len(parts))
        level = await self.noise_level(jobs, text, phases.phase(0), _FIRST_WINDOWS)
        if level is None:
            return None
        rate = min(max(level.error_rate, _FIRST_RATES[0]), _FIRST_RATES[1])
        counted: list[CountedPart] = []
        report = phases.phase(1)
        for done, part in enumerate(parts, start=1):
            counted.append(await self._count(jobs, text, part, rate))
            if report is not None:
                report(_CALLS_PER_PART * done, _CALLS_PER_PART * len(parts))
        shares = EditCosts(rate, self.channel).shares
        found, error = estimate_mistakes(counted, Mistakes(rate, tuple(shares.values())))
        low, high = max(0.0, found - 1.96 * error), min(1.0, found + 1.96 * error)
        calls = level.calls + sum(part.calls for part in counted)
        return level._replace(error_rate=found, low=low, high=high, calls=calls)

    async def _count(self, jobs: Jobs, text: str, part: TextPart, rate: float) -> CountedPart:
        given, fixed = self._given(text, part)
        reader = cast(Proofreader, self.proofreaders.words)
        if all(fixed):
            return CountedPart((), part.stop - part.start, 0)
        costs = EditCosts(rate, self.channel)
        written = "".join(given.texts)
        places, calls = await reader.judge(jobs, written, given.tokens, fixed, costs)
        return CountedPart(tuple(places), part.stop - part.start, calls)

    def parts(self, text: str) -> list[TextPart]:
        """Return the parts of a text, in order."""
        return parts_of(text)

    async def correct_part(
        self, jobs: Jobs, text: str, part: TextPart, error_rate: float
    ) -> JudgedText:
        """Return the doubtful places of a part, in order; they are places of the whole text."""
        given, fixed = self._given(text, part)
        edits, calls = await self._judge(jobs, given, fixed, max(error_rate, LEAST_MISTAKE_RATE))
        return JudgedText([edit.moved(part.context_start) for edit in edits], calls)

    def _given(self, text: str, part: TextPart) -> tuple[EncodedText, list[bool]]:
        """Return a part with its context, and which tokens are not changed."""
        offset, end = part.context_start, part.context_stop
        given = self.model.encode_given(text[offset:end], "the text to correct")
        kept = [(0, part.start - offset), (part.stop - offset, end - offset)]
        inside = (span for span in self.protected if span[0] < end and span[1] > offset)
        spans = [_shift(span, offset, end) for span in inside]
        fixed = protected_tokens(given, [*spans, *kept])
        if self.proofreaders.words is not None:
            unknown = map(self._is_unknown, given.tokens, given.texts)
            fixed = [any(reasons) for reasons in zip(fixed, unknown, strict=True)]
        return given, fixed

    async def correct(
        self,
        jobs: Jobs,
        text: str,
        error_rate: float | None,
        manifest: Callable[[ResultManifest, int], ResultManifest],
        on_progress: OnCharacters | None = None,
    ) -> Correction:
        """Correct a whole text; see `Pipeline.correct`.

        `manifest` completes the manifest, given the settings of the task and its forward passes.
        """
        if not text:
            raise DataError("the text to correct must not be empty, got ''.")
        require_spans(self.protected, len(text))
        noise = await self.estimate(jobs, text) if error_rate is None else None
        rate = noise.error_rate if noise is not None else error_rate or 0.0
        judged: list[JudgedText] = []
        for part in self.parts(text):
            judged.append(await self.correct_part(jobs, text, part, rate))
            if on_progress is not None:
                on_progress(part.stop, len(text))
        return self.assemble(text, judged, rate, noise, manifest)

    def assemble(
        self,
        text: str,
        judged: Sequence[JudgedText],
        error_rate: float,
        noise: NoiseLevel | None,
        manifest: Callable[[ResultManifest, int], ResultManifest],
    ) -> Correction:
        """Return the correction of a text, given its judged parts in order."""
        edits = [edit for part in judged for edit in part.edits]
        calls = sum(part.calls for part in judged) + (0 if noise is None else noise.calls)
        task: ResultManifest = {
            "task": "correct",
            "method": "tokens" if self.proofreaders.words is None else "words",
            "error_rate": error_rate,
            "is_estimated": noise is not None,
            "min_confidence": self.min_confidence,
            "channel": None if self.channel is None else self.channel.name,
            "protected": [list(span) for span in self.protected],
        }
        return Correction(
            text=apply_edits(text, edits),
            original=text,
            edits=tuple(edits),
            error_rate=error_rate,
            noise_level=noise,
            calls=calls,
            manifest=manifest(task, calls),
        )

    async def _judge(
        self, jobs: Jobs, given: EncodedText, fixed: Sequence[bool], rate: float
    ) -> JudgedText:
        if all(fixed):
            return JudgedText([], 0)
        words, tokens, least = self.proofreaders.words, given.tokens, self.min_confidence
        if words is not None:
            costs = EditCosts(rate, self.channel)
            return await words(jobs, "".join(given.texts), tokens, fixed, costs, least)
        return await self.proofreaders.tokens(jobs, given.texts, tokens, fixed, rate, least)

    def _is_unknown(self, token: int, text: str) -> bool:
        """Whether a character is encoded as a similar one; apostrophes of any shape are known."""
        return text != "’" and text != self.model.token_texts.of(token)


def correct_texts(
    corrector: TextCorrector,
    texts: Sequence[str],
    protected: Sequence[Sequence[Span]],
    error_rate: float | None,
    manifest: Callable[[ResultManifest, int], ResultManifest],
    on_progress: OnCharacters | None = None,
) -> list[Correction]:
    """Correct texts at once, each with its protected spans; see `Pipeline.correct`."""
    if len(protected) != len(texts) or any(map(_is_span, protected)):
        raise ConfigError(
            f"protected must have a list of spans (start, stop) for each of the {len(texts)} "
            f"texts, got {shorten(protected)}. Leave it out to protect nothing."
        )
    done, total = [0] * len(texts), sum(map(len, texts))

    def report(index: int, characters: int, _: int) -> None:
        done[index] = characters
        if on_progress is not None:
            on_progress(sum(done), total)

    return run_jobs(
        partial(
            replace(corrector, protected=tuple(spans)).correct,
            text=text,
            error_rate=error_rate,
            manifest=manifest,
            on_progress=partial(report, index),
        )
        for index, (text, spans) in enumerate(zip(texts, protected, strict=True))
    )


def _is_span(value: object) -> bool:
    """Whether a value is one span, where a list of spans is needed."""
    return isinstance(value, Sequence) and any(isinstance(place, int) for place in cast(Any, value))


def _shift(span: Span, offset: int, stop: int) -> Span:
    """Return the part of a span that lies in text[offset:stop], relative to `offset`."""
    start, end = (min(max(place, offset), stop) - offset for place in span)
    return start, end


def resolve_channel(channel: Channel | str | Path | None) -> Channel | None:
    """Return a channel, given one or the name or file of one."""
    return channel_by_name(channel) if isinstance(channel, str | Path) else channel
