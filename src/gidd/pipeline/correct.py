"""Self-correction of a text of any length, window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from gidd.errors import ConfigError
from gidd.pipeline.confidence import TokenConfidence, predict_frames, score_tokens
from gidd.pipeline.describe import plan_in_words, processors_in_words
from gidd.pipeline.results import Correction, Replacement, ResultManifest, Trace
from gidd.pipeline.text import TokenTexts
from gidd.pipeline.windows import Window, windows
from gidd.sampling import Engine, OnStep, Plan, Processor, Request, Sample, StepEvent, ban

Span = tuple[int, int]
"""Characters start .. stop - 1 of a text."""


def correct_text(
    engine: Engine,
    token_texts: TokenTexts,
    text: str,
    tokens: Sequence[int],
    *,
    context: int,
    plan: Plan,
    protected: Sequence[Span],
    seed: int,
    record_frames: bool,
    on_step: OnStep | None,
    manifest: Callable[[ResultManifest, int], ResultManifest],
) -> Correction:
    """Correct a text and judge it before and after; `manifest` completes (task, network calls)."""
    fixed = protected_tokens(token_texts, tokens, protected)
    processors = (
        ban(engine.schedule.vocab, token_texts.tokenizer.terminator_ids | token_texts.fixed),
    )
    corrector = Corrector(engine, plan, processors, context, seed, record_frames, on_step)
    new, traces = corrector.correct(tokens, fixed)
    before = score_tokens(engine, context, tokens, processors)
    after = score_tokens(engine, context, new, processors)
    calls = sum(trace.calls for trace in traces)
    task = {
        "task": "correct",
        "seed": seed,
        "plan": plan_in_words(plan),
        "processors": processors_in_words(processors),
        "protected": [list(span) for span in protected],
        "windows": len(traces),
    }
    return Correction(
        text="".join(token_texts(new)),
        original=text,
        tokens=tuple(new),
        replacements=tuple(replacements(token_texts, tokens, new, before, after)),
        confidence=tuple(
            1.0 if token_texts.is_fixed(token) else sure
            for token, sure in zip(new, after.probability, strict=True)
        ),
        self_accuracy=(before.self_accuracy(fixed), after.self_accuracy(fixed)),
        calls=calls,
        traces=tuple(traces),
        manifest=manifest(task, calls),
    )


def protected_tokens(
    token_texts: TokenTexts, tokens: Sequence[int], spans: Sequence[Span]
) -> list[bool]:
    """Tokens that touch a protected span, or are not for correction."""
    texts = token_texts(tokens)
    length = sum(map(len, texts))
    for start, stop in spans:
        if not 0 <= start <= stop <= length:
            raise ConfigError(
                f"a protected span must be (start, stop) with 0 <= start <= stop <= {length}, the "
                f"length of the text in characters, got ({start}, {stop}). Spans count as Python "
                "slices do: text[start:stop] stays."
            )
    kept = bytearray(length)
    for start, stop in spans:
        kept[start:stop] = b"\1" * (stop - start)
    fixed: list[bool] = []
    end = 0
    for token, text in zip(tokens, texts, strict=True):
        begin, end = end, end + len(text)
        fixed.append(any(kept[begin:end]) or token_texts.is_fixed(token))
    return fixed


@final
@dataclass(frozen=True)
class Corrector:
    """Corrects tokens with one plan.

    A text that does not fit into the context is corrected in windows. Each changes its own tokens
    and reads those around them; first every other window, then those in between, which read what
    the first have made. So no two neighbours change at once.
    """

    engine: Engine
    plan: Plan
    processors: tuple[Processor, ...]
    context: int
    seed: int
    record_frames: bool
    on_step: OnStep | None

    def correct(
        self, tokens: Sequence[int], fixed: Sequence[bool]
    ) -> tuple[list[int], list[Trace]]:
        """The corrected tokens, and what happened in each window."""
        current, parts = list(tokens), windows(len(tokens), self.context)
        traces: dict[int, Trace] = {}
        for parity in (0, 1):
            numbers = range(parity, len(parts), 2)
            requests = [self._request(current, fixed, parts[i], i) for i in numbers]
            tell = self.on_step and partial(_tell, self.on_step, numbers)
            samples = self.engine.sample(requests, on_step=tell, record_frames=self.record_frames)
            for number, sample in zip(numbers, samples, strict=True):
                part = parts[number]
                current[part.own_start : part.own_stop] = sample.tokens[part.own]
                traces[number] = self._trace(sample, part)
        return current, [traces[number] for number in range(len(parts))]

    def _request(
        self, tokens: Sequence[int], fixed: Sequence[bool], part: Window, number: int
    ) -> Request:
        inside = range(part.start, part.stop)
        return Request(
            tokens=tuple(tokens[part.start : part.stop]),
            plan=self.plan,
            seed=self.seed,
            sample_index=number,
            protected=tuple(fixed[i] or not part.own_start <= i < part.own_stop for i in inside),
            processors=self.processors,
        )

    def _trace(self, sample: Sample, part: Window) -> Trace:
        frames = sample.frames
        if self.record_frames:
            (last,) = predict_frames(self.engine, [sample.tokens], self.processors)
            frames = (
                *frames,
                last._replace(step_index=frames[-1].step_index + 1 if frames else 0, step="end"),
            )
        return Trace(
            tokens=sample.tokens,
            protected=sample.protected,
            edits=sample.edits,
            frames=frames,
            calls=sample.calls,
            offset=part.start,
        )


def _tell(on_step: OnStep, numbers: Sequence[int], event: StepEvent) -> None:
    """Of the windows of one round, by their number in the text."""
    on_step(event._replace(members=[numbers[i] for i in event.members]))


def replacements(
    token_texts: TokenTexts,
    old: Sequence[int],
    new: Sequence[int],
    before: TokenConfidence,
    after: TokenConfidence,
) -> list[Replacement]:
    """Where two texts of as many tokens differ."""
    found: list[Replacement] = []
    start = 0
    for i, (a, b) in enumerate(zip(token_texts(old), token_texts(new), strict=True)):
        if old[i] != new[i]:
            sure = (before.probability[i], after.probability[i])
            found.append(Replacement(i, start, a, b, *sure))
        start += len(a)
    return found
