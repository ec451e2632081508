"""Correction of any text by the posterior of each token, and self-correction (App. C).

Both keep the number of tokens, and read texts of any length in overlapping windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, compress
from operator import or_
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

import torch

from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.pipeline.generate import predict_frames, score_tokens, scoring_request
from gidd.pipeline.noise_level import estimate_noise, reading_cost
from gidd.pipeline.options import CorrectionOptions, WrongTokens
from gidd.pipeline.results import (
    Alternative,
    Correction,
    Generation,
    Replacement,
    SelfCorrection,
    TextEdit,
    Trace,
    apply_edits,
    choose_edit,
    describe_plan,
    describe_processors,
    is_suspect,
)
from gidd.pipeline.text import EncodedText, Span, ban_unwritten_tokens, protected_tokens
from gidd.sampling import Budget, OnStep, Plan, Request, gather, run_sync
from gidd.sampling.windows import PosteriorPass, TextWindows

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline

SMALLEST_ERROR_RATE: Final = 1e-4
"""Error rate of a text that is estimated as clean."""

_NUM_ALTERNATIVES = 3  # other tokens that are listed for a doubtful token

OnCharacters = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


class CorrectSettings(TypedDict, total=False):
    """Settings of `Pipeline.correct`."""

    error_rate: float | None
    min_confidence: float | None
    wrong_tokens: WrongTokens | None
    on_progress: OnCharacters | None


def windows_to_correct(
    pipe: Pipeline, text: str | Generation, protected: Sequence[Span]
) -> tuple[EncodedText, TextWindows]:
    """Return the tokens of a text, and windows over them; protected tokens are fixed.

    So are the tokens that a sample was given: its prompt, its suffix, the text around its blanks.
    """
    encoded = (
        pipe.decoder.encode_sample(text)
        if isinstance(text, Generation)
        else pipe.decoder.encode_with_offsets(text, "the text to correct")
    )
    if not encoded.tokens:
        raise DataError(f"the text to correct must not be empty, got {text!r}.")
    fixed = protected_tokens(encoded, protected)
    if isinstance(text, Generation):
        kept = text.trace.protected[: len(text.tokens)]
        fixed = [*map(or_, fixed, kept), *fixed[len(kept) :]]
    return encoded, TextWindows(encoded.tokens, fixed, pipe.window)


def correct_texts(
    pipe: Pipeline,
    texts: Sequence[str | Generation],
    protected: Sequence[Sequence[Span]],
    options: CorrectionOptions,
    on_progress: OnCharacters | None,
) -> list[Correction]:
    """Correct texts together, each with its protected spans; see `Pipeline.correct`."""
    spans: Sequence[Any] = protected if isinstance(cast(Any, protected), list | tuple) else ()
    is_listed = all(isinstance(s, list | tuple) and int not in map(type, s) for s in spans)
    if len(spans) != len(texts) or not is_listed:
        must = f"have a list of spans (start, stop) for each of the {len(texts)} texts"
        raise ConfigError(f"protected must {must}, got {shorten(protected)}.")
    parts = [windows_to_correct(pipe, *pair) for pair in zip(texts, spans, strict=True)]
    done, total = [0] * len(texts), sum(len("".join(encoded.texts)) for encoded, _ in parts)

    def report(index: int, characters: int) -> None:
        done[index] = characters
        if on_progress is not None:
            on_progress(sum(done), total)

    async def correct(index: int) -> Correction:
        return await _correct(
            pipe, *parts[index], protected[index], options, partial(report, index)
        )

    return run_sync(gather([correct(index) for index in range(len(texts))]))


async def _correct(
    pipe: Pipeline,
    encoded: EncodedText,
    cut: TextWindows,
    protected: Sequence[Span],
    options: CorrectionOptions,
    on_progress: Callable[[int], None],
) -> Correction:
    """Correct a text; one forward pass over each window gives the posterior of every token."""
    ends, text = [0, *accumulate(map(len, encoded.texts))], "".join(encoded.texts)
    noise, rate, forward_passes, edits = None, options.error_rate or 0.0, 0, list[TextEdit]()
    if not all(cut.fixed):
        Budget.current().reserve(reading_cost(pipe.window_reader(), cut))
        is_frequent = options.wrong_tokens == "frequent"
        wrong = pipe.token_frequencies if is_frequent else None
        if options.error_rate is None:
            noise = await estimate_noise(pipe.window_reader(), cut, wrong_tokens=wrong)
            rate, forward_passes = noise.error_rate, noise.forward_passes
        own_ends = iter([ends[part.own_stop] for part in cut.parts])
        banned = ban_unwritten_tokens(pipe.schedule.vocab, pipe.decoder)
        reader = replace(pipe.window_reader(), processors=(banned,))
        read = PosteriorPass(reader, wrong, _NUM_ALTERNATIVES)
        posteriors = await read(
            cut, max(rate, SMALLEST_ERROR_RATE), lambda: on_progress(next(own_ends))
        )
        forward_passes += len(cut)
        text_of = pipe.decoder.decode_one
        for part, window, posterior in zip(cut.parts, cut, posteriors, strict=True):
            current, others = posterior.current.tolist(), posterior.tokens.tolist()
            probabilities = posterior.probabilities.tolist()
            for i in compress(range(len(current)), window.editable):
                place = part.start + i
                old = Alternative(encoded.texts[place], current[i])
                listed = map(Alternative, map(text_of, others[i]), probabilities[i])
                edit = choose_edit(ends[place], old.text, [old, *listed], options.min_confidence)
                if is_suspect(edit):
                    edits.append(edit)
    return Correction(
        text=apply_edits(text, edits),
        original=text,
        edits=tuple(edits),
        error_rate=rate,
        noise_level=noise,
        forward_passes=forward_passes,
        manifest={
            "task": "correct",
            "error_rate": rate,
            "is_estimated": noise is not None,
            "min_confidence": options.min_confidence,
            "wrong_tokens": options.wrong_tokens,
            "protected": [list(span) for span in protected],
        },
    )


async def self_correct(
    pipe: Pipeline,
    text: str | Generation,
    protected: Sequence[Span],
    plan: Plan,
    seed: int,
    on_step: OnStep | None,
    record_frames: bool,
) -> SelfCorrection:
    """Correct a text by a plan of Algorithm 1, App. C, and score its tokens before and after."""
    encoded, cut = windows_to_correct(pipe, text, protected)
    processors = (ban_unwritten_tokens(pipe.schedule.vocab, pipe.decoder),)
    base = Request(tokens=(), plan=plan, seed=seed, processors=processors)
    passes = len(cut) * (len(plan) + 2)  # and two to score the tokens
    Budget.current().reserve(passes * pipe.session.padded_length(cut.parts[0].stop))
    new, traces = await _correct_windows(pipe, base, cut, on_step, record_frames)
    before = await score_tokens(pipe, encoded.tokens, processors)
    after = await score_tokens(pipe, new, processors)
    free = ~torch.tensor(cut.fixed, device=pipe.device)
    texts = pipe.decoder.decode_like(new, encoded)
    starts = accumulate(map(len, encoded.texts), initial=0)
    p, q = before.probability.tolist(), after.probability.tolist()
    replacements = tuple(
        Replacement(i, start, encoded.texts[i], texts[i], p[i], q[i])
        for i, start in zip(range(len(new)), starts, strict=False)
        if encoded.tokens[i] != new[i]
    )
    return SelfCorrection(
        text="".join(texts),
        original="".join(encoded.texts),
        tokens=tuple(new),
        replacements=replacements,
        confidence=tuple(1.0 if encoded.fixed[i] else q[i] for i in range(len(q))),
        self_accuracy=(before.self_accuracy(free), after.self_accuracy(free)),
        forward_passes=sum(trace.forward_passes for trace in traces),
        traces=tuple(traces),
        manifest={
            "task": "self_correct",
            "seed": seed,
            "plan": describe_plan(plan),
            "processors": describe_processors(processors),
            "protected": [list(span) for span in protected],
            "windows": len(traces),
        },
    )


async def _correct_windows(
    pipe: Pipeline,
    base: Request,
    cut: TextWindows,
    on_step: OnStep | None,
    record_frames: bool,
) -> tuple[list[int], list[Trace]]:
    """Return the corrected tokens, and the trace of each window.

    A window changes its own tokens and is conditioned on those around them. Even windows are
    corrected first, then odd ones given the result: adjacent windows never change at once.
    """
    current, parts, traces = list(cut.tokens), cut.parts, dict[int, Trace]()
    protected = [tuple(not is_own for is_own in window.editable) for window in cut]
    for parity in (0, 1):
        indices = range(parity, len(parts), 2)
        tokens = [tuple(current[parts[i].start : parts[i].stop]) for i in indices]
        requests = [
            replace(base, tokens=own_tokens, sample_index=i, protected=protected[i])
            for i, own_tokens in zip(indices, tokens, strict=True)
        ]
        samples = await pipe.session.run_all(
            requests, on_step=on_step, record_frames=record_frames, first_index=len(traces)
        )
        for index, sample in zip(indices, samples, strict=True):
            part = parts[index]
            current[part.own_start : part.own_stop] = sample.tokens[part.own_slice]
            traces[index] = Trace.of(sample, offset=part.start)
    ordered = [traces[index] for index in range(len(parts))]
    if record_frames:
        read = [scoring_request(trace.tokens, base.processors) for trace in ordered]
        last = await predict_frames(pipe.session, read)
        pairs = zip(ordered, last, strict=True)
        ordered = [trace.with_last_frame(frame) for trace, frame in pairs]
    return current, ordered
