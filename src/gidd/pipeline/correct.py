"""Self-correction of a text of any length, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

import torch

from gidd.errors import ConfigError
from gidd.pipeline.confidence import predict_frames, score_tokens
from gidd.pipeline.describe import describe_plan, describe_processors
from gidd.pipeline.results import Correction, Replacement, ResultManifest, Trace
from gidd.pipeline.text import TokenTexts, Window, windows
from gidd.sampling import Engine, Frame, OnStep, Plan, Processor, Request, StepEvent, ban

Span = tuple[int, int]
"""Characters start .. stop - 1 of a text."""


def protected_tokens(
    token_texts: TokenTexts, tokens: Sequence[int], spans: Sequence[Span]
) -> list[bool]:
    """Return for each token whether it overlaps a protected span or is never corrected."""
    texts = token_texts(tokens)
    length = sum(map(len, texts))
    kept = bytearray(length)
    for start, stop in spans:
        if not 0 <= start <= stop <= length:
            raise ConfigError(
                f"a protected span must be (start, stop) with 0 <= start <= stop <= {length}, the "
                f"length of the text in characters, got ({start}, {stop}). Spans are Python "
                "slices: text[start:stop] is kept."
            )
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
    """Corrects texts with one plan.

    A text longer than the context is corrected in overlapping windows, each of which changes its
    own tokens and is conditioned on those around them. Even windows are corrected first, then odd
    ones given the result, so that adjacent windows are never changed at the same time.
    """

    engine: Engine
    token_texts: TokenTexts
    plan: Plan
    context: int
    seed: int
    record_frames: bool
    on_step: OnStep | None

    @cached_property
    def processors(self) -> tuple[Processor, ...]:
        """A ban on tokens that correction never writes."""
        texts = self.token_texts
        return (ban(self.engine.schedule.vocab, texts.tokenizer.terminator_ids | texts.fixed),)

    def correct(
        self,
        text: str,
        tokens: Sequence[int],
        protected: Sequence[Span],
        manifest: Callable[[ResultManifest, int], ResultManifest],
    ) -> Correction:
        """Correct a text, and score its tokens before and after.

        `manifest` completes the manifest, given the settings of the task and its forward passes.
        """
        fixed = protected_tokens(self.token_texts, tokens, protected)
        new, traces = self._correct_windows(tokens, fixed)
        before = score_tokens(self.engine, self.context, tokens, self.processors)
        after = score_tokens(self.engine, self.context, new, self.processors)
        free = ~torch.tensor(fixed, device=self.engine.device)
        calls = sum(trace.calls for trace in traces)
        task = {
            "task": "correct",
            "seed": self.seed,
            "plan": describe_plan(self.plan),
            "processors": describe_processors(self.processors),
            "protected": [list(span) for span in protected],
            "windows": len(traces),
        }
        return Correction(
            text="".join(self.token_texts(new)),
            original=text,
            tokens=tuple(new),
            replacements=tuple(replacements(self.token_texts, tokens, new, before, after)),
            confidence=tuple(
                1.0 if self.token_texts.is_fixed(token) else probability
                for token, probability in zip(new, after.probability.tolist(), strict=True)
            ),
            self_accuracy=(before.self_accuracy(free), after.self_accuracy(free)),
            calls=calls,
            traces=tuple(traces),
            manifest=manifest(task, calls),
        )

    def _correct_windows(
        self, tokens: Sequence[int], fixed: Sequence[bool]
    ) -> tuple[list[int], list[Trace]]:
        """Return the corrected tokens and the trace of each window."""
        current, parts = list(tokens), windows(len(tokens), self.context)
        traces: dict[int, Trace] = {}
        for parity in (0, 1):
            indices = range(parity, len(parts), 2)
            requests = [self._request(current, fixed, parts[i], i) for i in indices]
            on_step = self.on_step and partial(_call_with_window_indices, self.on_step, indices)
            samples = self.engine.sample(
                requests, on_step=on_step, record_frames=self.record_frames
            )
            for index, sample in zip(indices, samples, strict=True):
                part = parts[index]
                current[part.own_start : part.own_stop] = sample.tokens[part.own]
                traces[index] = Trace.of(sample, offset=part.start)
                if self.record_frames:
                    (last,) = predict_frames(self.engine, [sample.tokens], self.processors)
                    traces[index] = traces[index].with_last_frame(last)
        return current, [traces[index] for index in range(len(parts))]

    def _request(
        self, tokens: Sequence[int], fixed: Sequence[bool], part: Window, index: int
    ) -> Request:
        inside = range(part.start, part.stop)
        return Request(
            tokens=tuple(tokens[part.start : part.stop]),
            plan=self.plan,
            seed=self.seed,
            sample_index=index,
            protected=tuple(fixed[i] or not part.own_start <= i < part.own_stop for i in inside),
            processors=self.processors,
        )


def _call_with_window_indices(on_step: OnStep, indices: Sequence[int], event: StepEvent) -> None:
    on_step(event._replace(members=[indices[i] for i in event.members]))


def replacements(
    token_texts: TokenTexts,
    old: Sequence[int],
    new: Sequence[int],
    before: Frame,
    after: Frame,
) -> Iterator[Replacement]:
    """Yield where two sequences of the same length differ, with the confidence in each."""
    start, p, q = 0, before.probability.tolist(), after.probability.tolist()
    for i, (a, b) in enumerate(zip(token_texts(old), token_texts(new), strict=True)):
        if old[i] != new[i]:
            yield Replacement(i, start, a, b, p[i], q[i])
        start += len(a)
