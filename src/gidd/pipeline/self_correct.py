"""Self-correction (Algorithm 1, App. C) of a text of any length, window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import final

import torch

from gidd.pipeline.generate import predict_frames, score_tokens, scoring_request
from gidd.pipeline.results import (
    Replacement,
    ResultManifest,
    SelfCorrection,
    Trace,
    describe_plan,
    describe_processors,
)
from gidd.pipeline.text import (
    EncodedText,
    Span,
    TokenDecoder,
    ban_unwritten_tokens,
    protected_tokens,
)
from gidd.sampling import Jobs, OnStep, Plan, Processor, Request, Session
from gidd.sampling.windows import windows


@final
@dataclass(frozen=True)
class SelfCorrector:
    """Corrects texts with one plan of Algorithm 1, App. C.

    A text longer than the context is corrected in overlapping windows, each of which changes its
    own tokens and is conditioned on those around them. Even windows are corrected first, then odd
    ones given the result, so that adjacent windows are never changed at the same time.
    """

    session: Session
    token_texts: TokenDecoder
    plan: Plan
    context: int
    seed: int
    record_frames: bool
    on_step: OnStep | None

    @cached_property
    def processors(self) -> tuple[Processor, ...]:
        """A ban on tokens that correction never writes."""
        return (ban_unwritten_tokens(self.session.schedule.vocab, self.token_texts),)

    async def correct(
        self,
        jobs: Jobs,
        given: EncodedText,
        protected: Sequence[Span],
        manifest: Callable[[ResultManifest, int], ResultManifest],
    ) -> SelfCorrection:
        """Correct a text, and score its tokens before and after.

        `manifest` completes the manifest, given the settings of the task and its forward passes.
        """
        tokens, fixed = given.tokens, protected_tokens(given, protected)
        new, traces = await self._correct_windows(jobs, tokens, fixed)
        before = await score_tokens(jobs, self.session, self.context, tokens, self.processors)
        after = await score_tokens(jobs, self.session, self.context, new, self.processors)
        free = ~torch.tensor(fixed, device=self.session.device)
        forward_passes = sum(trace.forward_passes for trace in traces)
        task = {
            "task": "self_correct",
            "seed": self.seed,
            "plan": describe_plan(self.plan),
            "processors": describe_processors(self.processors),
            "protected": [list(span) for span in protected],
            "windows": len(traces),
        }
        texts = self.token_texts.decode_like(new, given)
        starts = accumulate(map(len, given.texts), initial=0)
        p, q = before.probability.tolist(), after.probability.tolist()
        replacements = tuple(
            Replacement(i, start, given.texts[i], texts[i], p[i], q[i])
            for i, start in zip(range(len(new)), starts, strict=False)
            if given.tokens[i] != new[i]
        )
        return SelfCorrection(
            text="".join(texts),
            original="".join(given.texts),
            tokens=tuple(new),
            replacements=replacements,
            confidence=tuple(1.0 if given.fixed[i] else q[i] for i in range(len(q))),
            self_accuracy=(before.self_accuracy(free), after.self_accuracy(free)),
            forward_passes=forward_passes,
            traces=tuple(traces),
            manifest=manifest(task, forward_passes),
        )

    async def _correct_windows(
        self, jobs: Jobs, tokens: Sequence[int], fixed: Sequence[bool]
    ) -> tuple[list[int], list[Trace]]:
        current, parts = list(tokens), windows(len(tokens), self.context)
        traces: dict[int, Trace] = {}
        for parity in (0, 1):
            indices = range(parity, len(parts), 2)
            requests = [
                Request(
                    tokens=tuple(current[parts[i].start : parts[i].stop]),
                    plan=self.plan,
                    seed=self.seed,
                    sample_index=i,
                    protected=tuple(
                        fixed[k] or not parts[i].own_start <= k < parts[i].own_stop
                        for k in range(parts[i].start, parts[i].stop)
                    ),
                    processors=self.processors,
                )
                for i in indices
            ]
            samples = await jobs.sample(
                self.session, requests, on_step=self.on_step, record_frames=self.record_frames
            )
            for index, sample in zip(indices, samples, strict=True):
                part = parts[index]
                current[part.own_start : part.own_stop] = sample.tokens[part.own]
                traces[index] = Trace.of(sample, offset=part.start)
        if self.record_frames:
            ordered = [traces[index] for index in range(len(parts))]
            read = [scoring_request(trace.tokens, self.processors) for trace in ordered]
            for index, last in enumerate(await predict_frames(jobs, self.session, read)):
                traces[index] = traces[index].with_last_frame(last)
        return current, [traces[index] for index in range(len(parts))]
