"""Correction of found text by the posterior of each token.

The error rate of the text gives the time of the network; one forward pass over each window of the
text then gives the posterior of every token (`gidd.sampling.correctors.posterior`). The number of
tokens does not change. Texts of any length are read in overlapping windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain, compress
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

import torch

from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.pipeline.generate import predict_frames, score_tokens, scoring_request
from gidd.pipeline.noise_level import OnForwardPassesDone, estimate_noise
from gidd.pipeline.results import (
    Alternative,
    Correction,
    NoiseLevel,
    Replacement,
    ResultManifest,
    SelfCorrection,
    TextEdit,
    Trace,
    apply_edits,
    decide,
    describe_plan,
    describe_processors,
    is_doubtful,
)
from gidd.pipeline.text import (
    EncodedText,
    Span,
    TokenDecoder,
    ban_unwritten_tokens,
    protected_tokens,
)
from gidd.sampling import OnStep, Plan, Processor, Request, Session
from gidd.sampling.jobs import Jobs, run_jobs
from gidd.sampling.windows import PosteriorPass, TextWindows, WindowPosterior, windows

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline

SMALLEST_ERROR_RATE: Final = 1e-4
"""Error rate of a text that is estimated as clean."""

_NUM_ALTERNATIVES = 3
"""Other tokens that are listed for a doubtful token."""

OnCharacters = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


class CorrectSettings(TypedDict, total=False):
    """Settings of `Pipeline.correct`."""

    error_rate: float | None
    min_confidence: float | None
    on_progress: OnCharacters | None


@dataclass(frozen=True)
class TokenCorrector:
    """Corrects texts with a model; its methods are jobs, so several texts share forward passes."""

    model: Pipeline
    error_rate: float | None = None
    min_confidence: float | None = None
    protected: tuple[Span, ...] = ()

    async def noise_level(
        self, jobs: Jobs, text: str, on_forward_passes: OnForwardPassesDone | None = None
    ) -> NoiseLevel | None:
        """Estimate the fraction of wrong tokens; None if no token may be changed."""
        _, cut = self._windows(text)
        if all(cut.fixed):
            return None
        return await estimate_noise(
            jobs, self.model.window_reader(), cut, on_forward_passes=on_forward_passes
        )

    async def correct(
        self,
        jobs: Jobs,
        text: str,
        manifest: Callable[[ResultManifest, int], ResultManifest],
        on_progress: OnCharacters | None = None,
    ) -> Correction:
        """Correct a text; see `Pipeline.correct`.

        `manifest` completes the manifest, given the settings of the task and its forward passes.
        """
        given, cut = self._windows(text)
        ends = [0, *accumulate(map(len, given.texts))]
        noise, rate, edits = None, self.error_rate or 0.0, list[TextEdit]()
        if not all(cut.fixed):
            if self.error_rate is None:
                noise = await estimate_noise(jobs, self.model.window_reader(), cut)
                rate = noise.error_rate
            own_ends = iter([ends[part.own_stop] for part in cut.parts])

            def report() -> None:
                if on_progress is not None:
                    on_progress(next(own_ends), len(text))

            model = self.model
            banned = ban_unwritten_tokens(model.schedule.vocab, model.token_texts)
            reader = replace(model.window_reader(), processors=(banned,))
            read = PosteriorPass(reader, num_alternatives=_NUM_ALTERNATIVES)
            posteriors = await read(jobs, cut, max(rate, SMALLEST_ERROR_RATE), report)
            edits = list(self._edits(given, ends, cut, posteriors))
        own_passes = 0 if all(cut.fixed) else len(cut)
        forward_passes = own_passes + (0 if noise is None else noise.forward_passes)
        task: ResultManifest = {
            "task": "correct",
            "error_rate": rate,
            "is_estimated": noise is not None,
            "min_confidence": self.min_confidence,
            "protected": [list(span) for span in self.protected],
        }
        return Correction(
            text=apply_edits(text, edits),
            original=text,
            edits=tuple(edits),
            error_rate=rate,
            noise_level=noise,
            forward_passes=forward_passes,
            manifest=manifest(task, forward_passes),
        )

    def _windows(self, text: str) -> tuple[EncodedText, TextWindows]:
        given = self.model.encode_given(text, "the text to correct")
        fixed = protected_tokens(given, self.protected)
        return given, TextWindows(given.tokens, fixed, self.model.context)

    def _edits(
        self,
        given: EncodedText,
        starts: Sequence[int],
        cut: TextWindows,
        posteriors: Iterable[WindowPosterior],
    ) -> Iterator[TextEdit]:
        text_of = self.model.token_texts.decode_one
        for part, window, posterior in zip(cut.parts, cut, posteriors, strict=True):
            found, others = posterior.found.tolist(), posterior.tokens.tolist()
            probabilities = posterior.probabilities.tolist()
            for i in compress(range(len(found)), window.editable):
                place = part.start + i
                old = Alternative(given.texts[place], found[i])
                listed = map(Alternative, map(text_of, others[i]), probabilities[i])
                edit = decide(starts[place], old.text, [old, *listed], self.min_confidence)
                if is_doubtful(edit):
                    yield edit


def correct_texts(
    corrector: TokenCorrector,
    texts: Sequence[str],
    protected: Sequence[Sequence[Span]],
    manifest: Callable[[ResultManifest, int], ResultManifest],
    on_progress: OnCharacters | None = None,
) -> list[Correction]:
    """Correct texts together, each with its protected spans; see `Pipeline.correct`."""
    places = chain.from_iterable(protected)
    if len(protected) != len(texts) or any(isinstance(place, int) for place in cast(Any, places)):
        must = f"have a list of spans (start, stop) for each of the {len(texts)} texts"
        raise ConfigError(f"protected must {must}, got {shorten(protected)}.")
    done, total = [0] * len(texts), sum(map(len, texts))

    def report(index: int, characters: int, _: int) -> None:
        done[index] = characters
        if on_progress is not None:
            on_progress(sum(done), total)

    return run_jobs(
        partial(
            replace(corrector, protected=tuple(spans)).correct,
            text=text,
            manifest=manifest,
            on_progress=partial(report, index),
        )
        for index, (text, spans) in enumerate(zip(texts, protected, strict=True))
    )


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
