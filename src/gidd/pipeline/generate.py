"""From arguments to requests, and from samples to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor

from gidd.common.allowed import SEED, integer, require_arguments
from gidd.pipeline.confidence import can_score_visible_tokens, frames_of_masking, predict_frames
from gidd.pipeline.describe import describe_request
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.results import Generation, ResultManifest, Trace
from gidd.pipeline.text import TokenTexts
from gidd.sampling import Engine, Frame, Plan, Request, Sample, Tokens, ban

if TYPE_CHECKING:
    from gidd.pipeline.loaded_model import LoadedModel


def build_requests(
    pipe: LoadedModel,
    tokens: Tokens,
    stop: tuple[int, ...],
    options: SamplingOptions,
    plan: Plan | None,
    num_samples: int,
    seed: int,
    start_index: int,
) -> list[Request]:
    """Return one request per sample; without `stop`, terminators are never written."""
    require_arguments(
        num_samples=(num_samples, integer(1)),
        seed=(seed, SEED),
        start_index=(start_index, SEED),
    )
    if plan is None:
        if options.corrector_calls or options.correction.calls:
            named = options.corrector if options.corrector_calls else "correction"
            pipe.require_visible_scores(named)
        plan = options.plan()
    processors = options.processors()
    banned = pipe.tokenizer.unknown_ids | (frozenset() if stop else pipe.tokenizer.terminator_ids)
    if banned:
        # before truncation, which must not leave banned tokens only
        processors = (ban(pipe.schedule.vocab, banned), *processors)
    first = Request(tokens=tokens, plan=plan, seed=seed, processors=processors, stop=stop)
    return [replace(first, sample_index=start_index + i) for i in range(num_samples)]


def build_generations(
    engine: Engine,
    token_texts: TokenTexts,
    requests: Sequence[Request],
    samples: Sequence[Sample],
    manifest: Callable[[ResultManifest, int], ResultManifest],
) -> list[Generation]:
    """Return the result of each request, given its sample.

    If the network can score visible tokens, confidence costs a forward pass on each sample.
    `manifest` completes a manifest, given the settings of a request and its forward passes.
    """
    scored: Sequence[Frame | None] = [None] * len(samples)
    if can_score_visible_tokens(engine.schedule):
        scored = predict_frames(engine, [sample.tokens for sample in samples])
    results: list[Generation] = []
    for request, sample, frame in zip(requests, samples, scored, strict=True):
        trace, confidence = _trace(engine, request, sample, frame)
        results.append(
            Generation(
                text="".join(token_texts(sample.text)),
                tokens=sample.text,
                filled=tuple(_filled(token_texts, request.tokens, sample.text)),
                confidence=tuple(confidence[: len(sample.text)].tolist()),
                calls=sample.calls,
                trace=trace,
                manifest=manifest(describe_request(request), sample.calls),
            )
        )
    return results


def _trace(
    engine: Engine, request: Request, sample: Sample, scored: Frame | None
) -> tuple[Trace, Tensor]:
    """Return the trace with a frame of the final state, and the confidence in each token."""
    trace = Trace.of(sample)
    if scored is None:
        frames = frames_of_masking(sample, engine.schedule.vocab.mask_id)
        return (replace(trace, frames=frames) if sample.frames else trace), frames[-1].probability
    if sample.frames:
        last = scored
        if request.processors:  # they apply to the recorded frames too
            (last,) = predict_frames(engine, [sample.tokens], request.processors)
        trace = trace.with_last_frame(last._replace(time=0.0))
    return trace, scored.probability


def _filled(token_texts: TokenTexts, template: Tokens, tokens: Sequence[int]) -> Iterator[str]:
    """Yield the text of each run of blanks."""
    position = 0
    for is_blank, run in groupby(template, key=lambda token: token is None):
        end = position + len(list(run))
        if is_blank:
            yield "".join(token_texts(tokens[position:end]))
        position = end
