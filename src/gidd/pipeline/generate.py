"""From arguments to requests, and from samples to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor

from gidd.common.allowed import SEED, integer, require_arguments
from gidd.errors import ConfigError
from gidd.pipeline.confidence import can_score_visible_tokens, frames_of_masking, predict_frames
from gidd.pipeline.describe import describe_request
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.results import Generation, ResultManifest, Trace
from gidd.pipeline.text import TokenTexts
from gidd.sampling import Engine, Frame, Jobs, OnStep, Plan, Request, Sample, Tokens, ban
from gidd.sampling.jobs import sample_blocks

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


def require_no_blocks(block_length: int | None, what: str) -> None:
    """Raise `ConfigError` if a text is to be sampled in blocks that has something to its right."""
    if block_length is not None:
        raise ConfigError(
            f"block_length must be None with {what}, got {block_length}: a block is not "
            "conditioned on what comes after it. Omit one of them."
        )


async def run_requests(
    jobs: Jobs,
    model: LoadedModel,
    requests: Sequence[Request],
    manifest: Callable[[ResultManifest, int], ResultManifest],
    block_length: int | None,
    on_step: OnStep | None,
    record_frames: bool,
) -> list[Generation]:
    """Sample requests, in blocks if `block_length` is given, and return a result for each.

    `manifest` completes a manifest, given the settings of a request and its forward passes.
    """
    if block_length is None:
        samples = await jobs.sample(
            model.engine, requests, on_step=on_step, record_frames=record_frames
        )
        return await build_generations(jobs, model, requests, samples, manifest)
    if record_frames:
        raise ConfigError(
            "record_frames must be False for block-wise sampling, got True: frames have the length "
            "of a block's sequence. Omit block_length, or the frames (--html)."
        )
    samples = await jobs.gather(
        sample_blocks(jobs, model.engine, request, block_length, on_step=on_step)
        for request in requests
    )
    shorter = [
        replace(request, tokens=request.tokens[: len(sample.tokens)])
        for request, sample in zip(requests, samples, strict=True)
    ]
    blocks: ResultManifest = {"block_length": block_length}
    return await build_generations(
        jobs, model, shorter, samples, lambda task, calls: manifest(task | blocks, calls)
    )


async def build_generations(
    jobs: Jobs,
    model: LoadedModel,
    requests: Sequence[Request],
    samples: Sequence[Sample],
    manifest: Callable[[ResultManifest, int], ResultManifest],
) -> list[Generation]:
    """Return the result of each request, given its sample.

    If the network can score visible tokens, confidence costs a forward pass on each sample.
    """
    engine, token_texts = model.engine, model.token_texts
    last: list[Frame | None] = [None] * len(samples)
    scored = last
    if can_score_visible_tokens(engine.schedule):
        # recorded frames show x_theta after the processors, so that of the end does as well
        traced = [k for k, sample in enumerate(samples) if sample.frames]
        texts = [(sample.tokens, ()) for sample in samples]
        texts += [(samples[k].tokens, requests[k].processors) for k in traced]
        frames = await predict_frames(jobs, engine, texts)
        scored = frames[: len(samples)]
        for k, frame in zip(traced, frames[len(samples) :], strict=True):
            last[k] = frame
    results: list[Generation] = []
    for request, sample, frame, end in zip(requests, samples, scored, last, strict=True):
        trace, confidence = _trace(engine, sample, frame, end)
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
    engine: Engine, sample: Sample, scored: Frame | None, last: Frame | None
) -> tuple[Trace, Tensor]:
    """Return the trace with a frame of the final state, and the confidence in each token."""
    trace = Trace.of(sample)
    if scored is None:
        frames = frames_of_masking(sample, engine.schedule.vocab.mask_id)
        return (replace(trace, frames=frames) if sample.frames else trace), frames[-1].probability
    if last is not None:
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
