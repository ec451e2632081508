"""From arguments to requests, and from samples to results with the confidence in their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from gidd.common.allowed import SEED, integer, require_arguments
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.pipeline.options import CLEAN_TIME, SamplingOptions
from gidd.pipeline.results import Generation, ResultManifest, Trace, describe_request
from gidd.pipeline.text import TokenDecoder
from gidd.sampling import (
    Engine,
    Frame,
    Jobs,
    OnStep,
    Plan,
    Processor,
    Request,
    Sample,
    Tokens,
    ban,
    corrector_plan,
    no_op,
)
from gidd.sampling.jobs import sample_blocks
from gidd.sampling.windows import windows

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline


def build_requests(
    pipe: Pipeline,
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
    model: Pipeline,
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
    model: Pipeline,
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
        # recorded frames show x_theta after the processors, and so does the last frame
        traced = [k for k, sample in enumerate(samples) if sample.frames]
        texts = [(sample.tokens, ()) for sample in samples]
        texts += [(samples[k].tokens, requests[k].processors) for k in traced]
        frames = await predict_frames(jobs, engine, texts)
        scored = frames[: len(samples)]
        for k, frame in zip(traced, frames[len(samples) :], strict=True):
            last[k] = frame
    results: list[Generation] = []
    for request, sample, scored_frame, end in zip(requests, samples, scored, last, strict=True):
        trace = Trace.of(sample)
        frame = scored_frame
        if frame is None:
            frames = frames_of_masking(sample, engine.schedule.vocab.mask_id)
            frame = frames[-1]
            trace = replace(trace, frames=frames) if sample.frames else trace
        elif end is not None:
            trace = trace.with_last_frame(end._replace(time=0.0))
        results.append(
            Generation(
                text="".join(token_texts(sample.text)),
                tokens=sample.text,
                filled=tuple(_filled(token_texts, request.tokens, sample.text)),
                confidence=tuple(frame.probability[: len(sample.text)].tolist()),
                calls=sample.calls,
                trace=trace,
                manifest=manifest(describe_request(request), sample.calls),
            )
        )
    return results


def _filled(token_texts: TokenDecoder, template: Tokens, tokens: Sequence[int]) -> Iterator[str]:
    """Yield the text of each run of blanks."""
    position = 0
    for is_blank, run in groupby(template, key=lambda token: token is None):
        end = position + len(list(run))
        if is_blank:
            yield "".join(token_texts(tokens[position:end]))
        position = end


def stream_text(
    engine: Engine, token_texts: TokenDecoder, request: Request, block_length: int
) -> Iterator[str]:
    """Sample one request in blocks; yield the text of each when it is finished.

    The first piece begins with the prompt. A character whose bytes end in the next block is held
    back until then.
    """
    jobs, tokens, shown = Jobs(), list[int](), ""
    job = jobs.start(sample_blocks(jobs, engine, request, block_length, on_tokens=tokens.extend))
    try:
        while True:
            text = "".join(token_texts(tokens))
            complete = text if job.is_done else text.rstrip("\N{REPLACEMENT CHARACTER}")
            if len(complete) > len(shown):
                yield complete[len(shown) :]
                shown = complete
            if job.is_done:
                job.result()  # raises the error of a job that failed
                return
            jobs.step()
    finally:
        if not job.is_done:
            job.cancel()


def can_score_visible_tokens(schedule: MixingSchedule) -> bool:
    """Whether a network trained with this noise predicts other tokens than those it sees.

    Under masking alone every visible token is correct, so the loss does not depend on predictions
    at visible positions and the network does not learn any.
    """
    noise = schedule.beta_pi(torch.tensor([0.5])).squeeze(0)
    return any(p > 0 for token, p in enumerate(noise.tolist()) if token != schedule.vocab.mask_id)


async def score_tokens(
    jobs: Jobs,
    engine: Engine,
    context: int,
    tokens: Sequence[int],
    processors: tuple[Processor, ...] = (),
) -> Frame:
    """Return the prediction on a text of any length at the lowest noise level, by windows."""
    parts = windows(len(tokens), context)
    texts = [(tokens[part.start : part.stop], processors) for part in parts]
    frames = await predict_frames(jobs, engine, texts)
    # a frame is an index, a step, a time and then tensors over positions
    own = [[x[part.own] for x in frame[3:]] for frame, part in zip(frames, parts, strict=True)]
    return Frame(0, "end", CLEAN_TIME, *map(torch.cat, zip(*own, strict=True)))


async def predict_frames(
    jobs: Jobs,
    engine: Engine,
    texts: Iterable[tuple[Sequence[int], tuple[Processor, ...]]],
) -> list[Frame]:
    """Return the prediction on each text at the lowest noise level, by one forward pass each.

    Each text has its own processors of x_theta.
    """
    plan = corrector_plan(no_op, 1, CLEAN_TIME)  # only the frame before the step is used
    requests = [
        Request(
            tokens=tuple(text), plan=plan, protected=(False,) * len(text), processors=processors
        )
        for text, processors in texts
    ]
    samples = await jobs.sample(engine, requests, record_frames=True)
    return [sample.frames[0] for sample in samples]


def frames_of_masking(sample: Sample, mask_id: int | None) -> tuple[Frame, ...]:
    """Return the frames of a network that cannot score visible tokens, and one of the last state.

    Visible tokens do not change under masking: each is its own most likely token, and its
    probability is x_theta when it was written, 1 for given tokens.
    """
    edits, written = list(sample.edits), torch.ones(len(sample.tokens))
    tokens, none = torch.tensor(sample.tokens), torch.zeros_like(written)
    last = sample.frames[-1].step_index + 1 if sample.frames else 0
    end = Frame(last, "end", 0.0, tokens, written, none, tokens, written)
    frames: list[Frame] = []
    for frame in (*sample.frames, end):
        while edits and (frame is end or edits[0].step_index < frame.step_index):
            edit = edits.pop(0)
            written[edit.position] = edit.probability
        visible = (frame.tokens != mask_id).cpu()
        frames.append(
            frame._replace(
                probability=torch.where(visible, written, frame.probability.cpu()),
                entropy=torch.where(visible, 0, frame.entropy.cpu()),
                top=torch.where(visible, frame.tokens.cpu(), frame.top.cpu()),
                top_probability=torch.where(visible, written, frame.top_probability.cpu()),
            )
        )
    return tuple(frames)
