"""Correction of a text that was given, part by part.

A part is a few thousand characters with their context: it is corrected by itself, so memory does
not depend on the length of a text, and a long correction can be interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast, final

from gidd.errors import ConfigError, DataError
from gidd.pipeline.calls import CallPhases
from gidd.pipeline.loaded_model import LoadedModel
from gidd.pipeline.results import Correction, ResultManifest
from gidd.pipeline.spans import Span, ban_unwritten_tokens, protected_tokens, require_spans
from gidd.pipeline.text import EncodedText
from gidd.proofreading.channels import Channel, channel_by_name
from gidd.proofreading.edit_costs import EditCosts
from gidd.proofreading.edits import JudgedText, apply_edits
from gidd.proofreading.judge import TextJudge
from gidd.proofreading.noise_level import MAX_WINDOWS, NoiseLevel, OnCallsDone, estimate_noise
from gidd.proofreading.parts import TextPart, parts_of, spread_parts
from gidd.proofreading.places import LEAST_MISTAKE_RATE, CountedPart, Mistakes, estimate_mistakes
from gidd.proofreading.posterior_pass import PosteriorPass
from gidd.proofreading.proofreader import Proofreader
from gidd.proofreading.token_proofreader import TokenProofreader
from gidd.proofreading.window_reader import TextWindows, WindowReader
from gidd.sampling import Engine

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_WINDOWS = 6
"""Windows of a text that its noise level is read off, if mistakes are counted after that."""

_ESTIMATE_CHARACTERS, _ESTIMATE_PARTS = 384, 8
"""Size and number of the parts of a text that its mistakes are counted in."""

_CALLS_PER_PART = 10
"""Windows that take about as long as counting the mistakes of a part."""

_FIRST_RATES = 0.01, 0.1
"""Mistakes per character with which counting begins: not less, not more."""

_CROPS_PER_CALL = 8
"""Short texts in a forward pass: on a CPU, twice as fast as one by one."""

_NUM_ALTERNATIVES = 3
"""Other tokens that are listed for a doubtful token."""

_CHARACTER_KINDS = ("chars", "bytes")
"""Kinds of tokenizers with tokens that channels describe."""

OnCharacters = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


@final
@dataclass(frozen=True)
class TextCorrector:
    """Finds mistakes in texts of any length.

    With a model whose tokens are characters and that has a list of words, words are judged as a
    whole (`Proofreader`), and letters may be added, dropped and exchanged. Otherwise each token is
    judged by its posterior (`TokenProofreader`), and the number of tokens does not change.
    """

    model: LoadedModel
    channel: Channel | None = None
    min_confidence: float | None = None
    protected: tuple[Span, ...] = ()

    def noise_level(
        self, text: str, on_calls: OnCallsDone | None = None, max_windows: int = MAX_WINDOWS
    ) -> NoiseLevel | None:
        """Estimate the fraction of wrong tokens; None if no token may be changed."""
        given = self.model.encode_given(text, "the text to correct")
        fixed = protected_tokens(given, self.protected)
        if all(fixed):
            return None
        cut = TextWindows(given.tokens, fixed, self.model.context)
        return estimate_noise(
            self.model.reader,
            cut,
            channel=self._table,
            on_calls=on_calls,
            max_windows=max_windows,
        )

    def estimate(self, text: str, on_calls: OnCallsDone | None = None) -> NoiseLevel | None:
        """Estimate the error rate that `correct` uses; None if no token may be changed.

        If words are judged, it is the number of mistakes per character, also of letters that were
        added or dropped, which the noise level cannot count. It begins with the noise level.
        """
        if self._reads_words is None:
            return self.noise_level(text, on_calls)
        parts = spread_parts(text, _ESTIMATE_CHARACTERS, _ESTIMATE_PARTS)
        phases = CallPhases(on_calls, 1, _CALLS_PER_PART * len(parts))
        level = self.noise_level(text, phases.phase(0), _FIRST_WINDOWS)
        if level is None:
            return None
        rate = min(max(level.error_rate, _FIRST_RATES[0]), _FIRST_RATES[1])
        counted: list[CountedPart] = []
        report = phases.phase(1)
        for done, part in enumerate(parts, start=1):
            counted.append(self._count(text, part, rate))
            if report is not None:
                report(_CALLS_PER_PART * done, _CALLS_PER_PART * len(parts))
        shares = EditCosts(rate, self.channel).shares
        found, error = estimate_mistakes(counted, Mistakes(rate, tuple(shares.values())))
        low, high = max(0.0, found - 1.96 * error), min(1.0, found + 1.96 * error)
        calls = level.calls + sum(part.calls for part in counted)
        return level._replace(error_rate=found, low=low, high=high, calls=calls)

    def _count(self, text: str, part: TextPart, rate: float) -> CountedPart:
        given, fixed = self._given(text, part)
        reader = cast(Proofreader, self._reads_words)
        if all(fixed):
            return CountedPart((), part.stop - part.start, 0)
        costs = EditCosts(rate, self.channel)
        places, calls = reader.judge("".join(given.texts), given.tokens, fixed, costs)
        return CountedPart(tuple(places), part.stop - part.start, calls)

    def parts(self, text: str) -> list[TextPart]:
        """Return the parts of a text, in order."""
        return parts_of(text)

    def correct_part(self, text: str, part: TextPart, error_rate: float) -> JudgedText:
        """Return the doubtful places of a part, in order; they are places of the whole text."""
        given, fixed = self._given(text, part)
        edits, calls = self._judge(given, fixed, max(error_rate, LEAST_MISTAKE_RATE))
        return JudgedText([edit.moved(part.context_start) for edit in edits], calls)

    def _given(self, text: str, part: TextPart) -> tuple[EncodedText, list[bool]]:
        """Return a part with its context, and which tokens are not changed."""
        offset, end = part.context_start, part.context_stop
        given = self.model.encode_given(text[offset:end], "the text to correct")
        kept = [(0, part.start - offset), (part.stop - offset, end - offset)]
        inside = (span for span in self.protected if span[0] < end and span[1] > offset)
        spans = [_shift(span, offset, end) for span in inside]
        fixed = protected_tokens(given, [*spans, *kept])
        if self._reads_words is not None:
            unknown = map(self._is_unknown, given.tokens, given.texts)
            fixed = [any(reasons) for reasons in zip(fixed, unknown, strict=True)]
        return given, fixed

    def correct(
        self,
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
        noise = self.estimate(text) if error_rate is None else None
        rate = noise.error_rate if noise is not None else error_rate or 0.0
        judged: list[JudgedText] = []
        for part in self.parts(text):
            judged.append(self.correct_part(text, part, rate))
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
            "method": "tokens" if self._reads_words is None else "words",
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

    def _judge(self, given: EncodedText, fixed: Sequence[bool], rate: float) -> JudgedText:
        if all(fixed):
            return JudgedText([], 0)
        if self._reads_words is not None:
            costs = EditCosts(rate, self.channel)
            text = "".join(given.texts)
            return self._reads_words(text, given.tokens, fixed, costs, self.min_confidence)
        return self._reads_tokens(given.texts, given.tokens, fixed, rate, self.min_confidence)

    def _is_unknown(self, token: int, text: str) -> bool:
        """Whether a character is encoded as a similar one; apostrophes of any shape are known."""
        return text != "’" and text != self.model.token_texts.of(token)

    @cached_property
    def _reads_words(self) -> Proofreader | None:
        model = self.model
        if model.words is None or not model.tokenizer.is_character_level:
            return None
        judge = TextJudge(self._batches, model.tokenizer)
        passes = PosteriorPass(self._writer, self._table)
        return Proofreader(passes, judge, model.tokenizer, model.words, model.context)

    @cached_property
    def _batches(self) -> WindowReader:
        """The network for many short texts, several of which share a forward pass."""
        engine = self.model.engine
        several = Engine(
            engine.network,
            engine.schedule,
            rows_per_call=max(_CROPS_PER_CALL, engine.rows_per_call),
            max_length=engine.max_length,
            device=engine.device,
        )
        return replace(self.model.reader, engine=several)

    @cached_property
    def _reads_tokens(self) -> TokenProofreader:
        passes = PosteriorPass(self._writer, self._table, _NUM_ALTERNATIVES)
        return TokenProofreader(passes, self.model.token_texts.of, self.model.context)

    @cached_property
    def _writer(self) -> WindowReader:
        """The network, with a ban on tokens that correction never writes."""
        model = self.model
        banned = ban_unwritten_tokens(model.schedule.vocab, model.token_texts)
        return replace(model.reader, processors=(banned,))

    @cached_property
    def _table(self) -> Tensor | None:
        """The channel by tokens [V, V]."""
        if self.channel is None:
            return None
        tokenizer, texts = self.model.tokenizer, self.model.token_texts
        if tokenizer.kind not in _CHARACTER_KINDS:
            raise ConfigError(
                "a channel needs a model whose tokens are characters (chars or bytes), got a "
                f"tokenizer of kind {tokenizer.kind}. Omit the channel, or use another model."
            )
        special = tokenizer.terminator_ids | texts.fixed | {tokenizer.vocab.mask_id}
        size = self.model.schedule.vocab.size
        characters = [None if v in special else texts.of(v) for v in range(size)]
        table = self.channel.table([c if c and len(c) == 1 else None for c in characters])
        reader = self.model.reader
        return table.to(reader.engine.device, reader.dtype)


def _shift(span: Span, offset: int, stop: int) -> Span:
    """Return the part of a span that lies in text[offset:stop], relative to `offset`."""
    start, end = (min(max(place, offset), stop) - offset for place in span)
    return start, end


def resolve_channel(channel: Channel | str | Path | None) -> Channel | None:
    """Return a channel, given one or the name or file of one."""
    return channel_by_name(channel) if isinstance(channel, str | Path) else channel
