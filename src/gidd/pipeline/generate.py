"""From arguments to requests, and from samples to results."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from gidd.common.config.allowed import SEED, integer, require_arguments
from gidd.common.terminal import shorten
from gidd.diffusion.error_rate import can_score_visible_tokens
from gidd.errors import ConfigError, DataError
from gidd.pipeline.json_schema import schema_pattern
from gidd.pipeline.options import CLEAN_TIME, SamplingOptions, first_changed
from gidd.pipeline.patterns import compile_pattern
from gidd.pipeline.results import Generation, Trace, describe_request
from gidd.pipeline.text import (
    TokenDecoder,
    cut_at_stop,
    end_of_text,
    require_text,
    without_partial_stop,
)
from gidd.sampling import (
    Automaton,
    Budget,
    Constraint,
    Event,
    Frame,
    Guidance,
    OnStep,
    Plan,
    PlannedStep,
    Processor,
    ReadCandidates,
    Request,
    Sample,
    Session,
    Tokens,
    ban,
    corrector_plan,
    gather,
    no_op,
    one_of,
    run_sync,
)
from gidd.sampling.blocks import blocks_of, cost_of_blocks, next_block, sample_blocks
from gidd.sampling.windows import windows

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline

_OF_PLAN = (
    *("steps", "timestep_spacing", "sampler", "sampler_options", "self_correction"),
    *("final_corrector", "final_corrector_options", "final_corrector_steps"),
)
_SHOWN = 8
"""Number of choices whose lengths a message names."""
_SCORING = corrector_plan(no_op, 1, CLEAN_TIME)  # only the frame before the step is used


def build_requests(
    pipe: Pipeline,
    tokens: Tokens,
    stop: tuple[int, ...],
    options: SamplingOptions,
    plan: Plan | None,
    n: int,
    seed: int,
    start_index: int,
    constraints: tuple[Constraint, ...] = (),
    further_processors: Sequence[Processor] = (),
) -> list[Request]:
    """Return one request per sample; without `stop`, terminators are never written."""
    require_arguments(n=(n, integer(1)), seed=(seed, SEED), start_index=(start_index, SEED))
    if plan is None:
        if options.final_corrector_steps or options.self_correction.forward_passes:
            is_final = options.final_corrector_steps > 0
            pipe.require_visible_scores("final_corrector_steps" if is_final else "self_correction")
        plan = options.plan()
    elif name := first_changed(options, *_OF_PLAN):
        raise ConfigError(f"{name} must be left out with plan, which has all steps itself.")
    processors = (*further_processors, *options.processors())
    banned = pipe.tokenizer.unknown_ids | (frozenset() if stop else pipe.tokenizer.terminator_ids)
    if banned:
        # before truncation, which must not leave banned tokens only
        processors = (ban(pipe.schedule.vocab, banned), *processors)
    first = Request(
        tokens=tokens,
        plan=plan,
        seed=seed,
        processors=processors,
        stop=stop,
        guidance=build_guidance(pipe, tokens, options),
        constraints=constraints,
    )
    return [replace(first, sample_index=start_index + i) for i in range(n)]


def build_guidance(pipe: Pipeline, tokens: Tokens, options: SamplingOptions) -> Guidance | None:
    """Return the guidance of a request, None for scale 1.

    Without the condition, given tokens are masks, but the first one for a network that needs it;
    the negative prompt ends at the first blank.
    """
    scale, mask_id = options.guidance_scale, pipe.schedule.vocab.mask_id
    if scale == 1:
        return None
    if mask_id is not None and pipe.schedule.beta_pi(torch.ones(1))[0, mask_id] == 0:
        mask_id = None  # the network has never seen one
    num_given = sum(token is not None for token in tokens)
    if not num_given:
        raise ConfigError(
            f"guidance_scale must be 1 if no text is given, got {scale}: there is no condition to "
            "follow. Give a prompt."
        )
    negative = pipe.decoder.encode(options.negative_prompt or "", "the negative prompt")
    first_blank = tokens.index(None) if None in tokens else len(tokens)
    if len(negative) > first_blank:
        raise DataError(
            "the negative prompt must have at most as many tokens as the text before the first "
            f"blank, {first_blank}, got {len(negative)}. Shorten it, or make the prompt longer."
        )
    if mask_id is None and len(negative) < num_given:
        raise ConfigError(
            "guidance_scale with noise without masks needs a negative prompt in place of every "
            f"given token, {num_given}, got {len(negative)} tokens. Give one of that length."
        )
    without = [None if token is None else mask_id for token in tokens]
    without[first_blank - len(negative) : first_blank] = negative
    if getattr(pipe.denoiser.backbone, "needs_first_token", False) and without[0] == mask_id:
        without[0] = tokens[0]
        if tuple(without) == tokens:
            raise ConfigError(
                f"guidance_scale must be 1 if only the first token is given, got {scale}: this "
                "network needs that token also without the condition. Give a longer prompt."
            )
    return Guidance(scale, tuple(without))


def compile_automaton(
    pipe: Pipeline, pattern: str, *, at_start: bool = False, ends: tuple[int, ...] = ()
) -> Automaton:
    """Return the automaton of a pattern, for texts that end at any of the tokens `ends`."""
    automaton = compile_pattern(pattern, pipe.token_texts, at_start=at_start)
    return automaton.with_end(ends) if ends else automaton


def pattern_of(
    pattern: str | None, schema: Mapping[str, Any] | None, stop: Sequence[str]
) -> str | None:
    """Return the pattern of a text, or of the valid JSON of a schema; None if neither is given."""
    if pattern is None and schema is None:
        return None
    name = "pattern" if schema is None else "schema"
    if pattern is not None and schema is not None:
        raise ConfigError("pattern must be omitted with schema, which stands for a pattern.")
    if stop:
        raise ConfigError(f"stop must be empty with a {name}, which says where the text ends.")
    return schema_pattern(schema) if pattern is None else pattern


def constrained_text(
    pipe: Pipeline, tokens: Tokens, ends: tuple[int, ...], pattern: str | None
) -> tuple[Constraint, ...]:
    """Return the constraint of the blanks of a sequence whose text matches a pattern, if any."""
    if pattern is None:
        return ()
    start, stop = tokens.index(None), len(tokens) - tokens[::-1].index(None)
    return (Constraint(pipe.automaton(pattern, at_start=start == 0, ends=ends), start, stop),)


Slots = tuple[tuple[Constraint, ...], list[list[tuple[int, ...]]]]
"""Constraints of blanks, and the options of each; none of a pattern."""


def build_constraints(
    pipe: Pipeline,
    tokens: Tokens,
    choices: Sequence[str] | Mapping[int, Sequence[str]],
    pattern: str | Mapping[int, str],
    spaced: frozenset[int] = frozenset(),
) -> Slots:
    """Return the constraints of a template: of its only blank, or of blanks by their index.

    Blanks that begin at a position of `spaced` took the space before them.
    """
    places = groupby(range(len(tokens)), key=lambda i: tokens[i] is None)
    blanks = [list(run) for is_blank, run in places if is_blank]
    only = 0 if len(blanks) == 1 else -1
    texts_of = choices if isinstance(choices, Mapping) else {only: choices}
    patterns = pattern if isinstance(pattern, Mapping) else {only: pattern} if pattern else {}
    for name, got, by_blank, kind, example in (
        ("choices", choices, texts_of, (list, tuple), "a list"),
        ("pattern", pattern, patterns, str, "a regular expression"),
    ):
        is_of_kind = all(isinstance(value, kind) for value in by_blank.values())
        if not is_of_kind or not by_blank.keys() <= set(range(len(blanks))):
            raise ConfigError(
                f"{name} must be {example} for a template of one blank, or by the index of a "
                f"blank, {{0: ...}}, got {shorten(got)} for {len(blanks)} blanks."
            )
    if both := texts_of.keys() & patterns.keys():
        raise ConfigError(f"blank {min(both)} must have choices or a pattern, got both.")
    constraints, options = list[Constraint](), list[list[tuple[int, ...]]]()
    for index in sorted(texts_of.keys() | patterns.keys()):
        start, size = blanks[index][0], len(blanks[index])
        space = " " if start in spaced else ""
        if index in patterns:
            written = f"{space}(?:{patterns[index]})" if space else patterns[index]
            automaton, slot = pipe.automaton(written, at_start=start == 0), []
        else:
            for text in texts_of[index]:
                require_text(text, "a choice")
            texts = [space + text for text in texts_of[index]]
            slot = _encode_choices(pipe, texts, size, starts=start == 0)
            name = f"the choices {shorten(texts)}"
            automaton = one_of(slot, pipe.schedule.vocab.size, name)
        constraints.append(Constraint(automaton, start, start + size))
        options.append(slot)
    return tuple(constraints), options


def _encode_choices(
    pipe: Pipeline, texts: Sequence[str], size: int, *, starts: bool
) -> list[tuple[int, ...]]:
    """Return the tokens of the texts of which a blank of `size` tokens becomes one."""
    options = [tuple(pipe.decoder.encode(t, "a choice", starts=starts)) for t in texts]
    lengths = [len(option) for option in options]
    if not options or len(set(options)) < len(options):
        raise ConfigError(f"choices must be different texts, at least 1, got {shorten(texts)}.")
    if any(length != size for length in lengths):
        pairs = [f"{n} in {shorten(text)}" for text, n in zip(texts, lengths, strict=True)]
        counts = ", ".join(pairs[:_SHOWN]) + (", ..." if len(pairs) > _SHOWN else "")
        is_equal = len(set(lengths)) == 1
        fix = f"Write [MASK:{lengths[0]}]" if is_equal else "Take choices of equal length"
        raise DataError(
            f"choices must have the number of tokens of their blank, {size}, got {counts}. "
            f"{fix}, or compare complete texts with score()."
        )
    return options


def require_no_blocks(block_length: int | None, feature: str) -> None:
    """Raise `ConfigError` if `block_length` is set for a feature that needs text at the right."""
    if block_length is not None:
        raise ConfigError(f"block_length must be None with {feature}, got {block_length}.")


async def run_requests(
    pipe: Pipeline,
    requests: Sequence[Request],
    block_length: int | None,
    on_step: OnStep | None,
    record_frames: bool,
    confidence: bool,
    stop: Sequence[str],
    revise: int = 0,
) -> list[Generation]:
    """Sample requests, in blocks if `block_length` is given, and return a result for each.

    A text ends before the first of the strings `stop` after its first blank.
    """
    session = pipe.session
    recorded: dict[str, Any] = {"stop_strings": list(stop)} if stop else {}
    if block_length is None:
        samples = await session.run_all(requests, on_step=on_step, record_frames=record_frames)
    elif record_frames:
        raise ConfigError("record_frames must be False with block_length, got True (--html).")
    else:
        recorded |= {"block_length": block_length} | ({"revise": revise} if revise else {})
        Budget.current().reserve(
            sum(cost_of_blocks(session, request, block_length, revise) for request in requests)
        )

        def has_stop(first_blank: int, tokens: tuple[int, ...]) -> bool:
            text = "".join(pipe.decoder.whole(tokens)[first_blank:])
            return any(string in text for string in stop)

        samples = await gather(
            [
                sample_blocks(
                    session,
                    request,
                    block_length,
                    revise=revise,
                    index=index,
                    on_step=on_step,
                    is_end=partial(has_stop, request.first_blank),
                )
                for index, request in enumerate(requests)
            ]
        )
        pairs = zip(requests, samples, strict=True)
        requests = [request.first(len(sample.tokens)) for request, sample in pairs]
    generations = await build_generations(pipe, requests, samples, confidence)
    pairs = zip(requests, generations, strict=True)
    generations = [
        cut_at_stop(generation, pipe.decoder, request.first_blank, stop)
        for request, generation in pairs
    ]
    return [
        replace(generation, manifest=generation.manifest | recorded) for generation in generations
    ]


async def build_generations(
    pipe: Pipeline,
    requests: Sequence[Request],
    samples: Sequence[Sample],
    confidence: bool,
) -> list[Generation]:
    """Return the result of each request, given its sample.

    If the network can score visible tokens, confidence costs a forward pass on each sample, and so
    does the last frame of a sample whose frames were recorded.
    """
    session, decoder = pipe.session, pipe.decoder
    traces, scored = [Trace.of(sample) for sample in samples], list[Frame]()
    traced = [k for k, sample in enumerate(samples) if sample.frames]
    if can_score_visible_tokens(session.schedule):
        # recorded frames show x_theta after guidance and processors, and so does the last frame
        read = [
            scoring_request(samples[k].tokens, requests[k].processors, requests[k].guidance)
            for k in traced
        ]
        read += [scoring_request(sample.tokens) for sample in samples if confidence]
        frames = await predict_frames(session, read)
        scored = frames[len(traced) :]
        for k, last in zip(traced, frames, strict=False):
            traces[k] = traces[k].with_last_frame(last._replace(time=0.0))
    elif traced or confidence:
        masked = [frames_of_masking(sample, session.schedule.vocab.mask_id) for sample in samples]
        scored = [frames[-1] for frames in masked if confidence]
        for k in traced:
            traces[k] = replace(traces[k], frames=masked[k])
    logs = dict[int, tuple[float, float]]()
    if confidence:
        of = [k for k, request in enumerate(requests) if request.constraints]
        candidates = [(samples[k].tokens,) for k in of]
        read = await read_candidates(session, [requests[k] for k in of], candidates)
        for k, (log_p, log_accepted) in zip(of, read, strict=True):
            is_new = torch.zeros(len(log_p), dtype=torch.bool)
            for constraint in requests[k].constraints:  # to the first stop token, if there is one
                is_new[constraint.start : min(constraint.stop, len(samples[k].text) + 1)] = True
            logs[k] = float(log_p[is_new].sum()) - log_accepted, log_accepted
    confidences = [tuple(frame.probability.tolist()) for frame in scored] or [None] * len(samples)
    return [
        Generation(
            text="".join(decoder.whole(sample.text)),
            tokens=sample.text,
            filled=tuple(_filled(decoder, request.tokens, sample.text)),
            confidence=scores and scores[: len(sample.text)],
            forward_passes=sample.forward_passes,
            trace=trace,
            manifest=describe_request(request),
            log_probability=logs[k][0] if k in logs else None,
            log_constraint=logs[k][1] if k in logs else None,
        )
        for k, (request, sample, trace, scores) in enumerate(
            zip(requests, samples, traces, confidences, strict=True)
        )
    ]


async def read_candidates(
    session: Session, requests: Sequence[Request], candidates: Sequence[tuple[tuple[int, ...], ...]]
) -> list[tuple[torch.Tensor, float]]:
    """Return log x_theta of the tokens of candidates [L, K], and log p(constraint), at time 1."""
    plans = [Plan((PlannedStep(ReadCandidates(texts), 1.0, 0.0),)) for texts in candidates]
    pairs = zip(requests, plans, strict=True)
    samples = await session.run_all([replace(request, plan=plan) for request, plan in pairs])
    return [(sample.values[0], float(sample.values[1][0])) for sample in samples]


async def choice_probabilities(
    pipe: Pipeline, request: Request, options: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[float]]:
    """Return the probabilities of the options of each constraint of a request."""
    columns = max(map(len, options))
    texts = [[0 if token is None else token for token in request.tokens] for _ in range(columns)]
    for constraint, slot in zip(request.constraints, options, strict=True):
        for text, option in zip(texts, slot, strict=False):
            text[constraint.start : constraint.stop] = option
    ((log_p, _),) = await read_candidates(pipe.session, [request], [tuple(map(tuple, texts))])
    return [
        log_p[constraint.start : constraint.stop, : len(slot)].sum(0).softmax(0).tolist()
        for constraint, slot in zip(request.constraints, options, strict=True)
    ]


def _filled(decoder: TokenDecoder, template: Tokens, tokens: Sequence[int]) -> Iterator[str]:
    position = 0
    for is_blank, run in groupby(template, key=lambda token: token is None):
        end = position + len(list(run))
        if is_blank:
            text_of = decoder if position else decoder.whole
            yield "".join(text_of(tokens[position:end]))
        position = end


class StreamEnd(NamedTuple):
    """The end of a text that was sampled in blocks: token counts, and whether it stopped."""

    num_given: int
    """Tokens that were given."""
    num_tokens: int
    """Tokens that were sampled, without those after the end."""
    is_stopped: bool
    """Whether it ended at end-of-text or a stop string."""


class TextState(NamedTuple):
    """A text while it is sampled."""

    text: str
    """The text as it is now, to the end of the block that is sampled; masks are "[MASK]"."""
    new: str = ""
    """What is finished since the state before, and changes no more."""
    steps_done: int = 0
    num_steps: int = 0
    """Steps of all blocks."""


class TextStream(Iterator[TextState]):
    """The states of a text after every step, or (`pieces`) the text of each block when it is done.

    The cost of all blocks is reserved at once. The first piece begins with the prompt; an answer
    has no prompt, and no white space around it. A character whose bytes end in the next block is
    held back until then, and so is what may be the beginning of a stop string.
    """

    def __init__(
        self,
        pipe: Pipeline,
        request: Request,
        block_length: int,
        stop: Sequence[str],
        *,
        is_answer: bool = False,
    ) -> None:
        Budget.current().reserve(cost_of_blocks(pipe.session, request, block_length))
        self._pipe, self._request, self._block_length = pipe, request, block_length
        self._stop, self._is_answer = stop, is_answer
        self._states = self._all_states()

    def __next__(self) -> TextState:
        return next(self._states)

    def close(self) -> None:
        """End the sampling of states."""
        self._states.close()

    def pieces(self, on_step: OnStep | None = None) -> Generator[str, None, StreamEnd]:
        """Sample, and yield the text of each block; return how the text ended."""
        pipe, request, stop = self._pipe, self._request, self._stop
        first, tokens, shown = request.first_blank, (), ""
        end = StreamEnd(first, 0, is_stopped=False)
        while not end.is_stopped:
            block = next_block(pipe.session, request, tokens, self._block_length)
            if block is None:
                break
            sample = run_sync(pipe.session.run(block, on_step=on_step))
            tokens, texts = sample.tokens, pipe.decoder.whole(sample.text)
            whole = "".join(texts[first:])
            text = whole[: end_of_text(whole, stop)]
            is_stopped = len(sample.text) < len(tokens) or len(text) < len(whole)
            end = StreamEnd(first, max(0, len(sample.text) - first), is_stopped)
            if not is_stopped and len(tokens) < len(request.tokens):
                text = without_partial_stop(text.rstrip("\N{REPLACEMENT CHARACTER}"), stop)
            complete = text.strip() if self._is_answer else "".join(texts[:first]) + text
            if len(complete) > len(shown):
                yield complete[len(shown) :]
                shown = complete
        return end

    def _all_states(self) -> Generator[TextState]:
        """Sample in a thread, which ends with this generator."""
        items, budget, context = SimpleQueue[Any](), Budget(), copy_context()

        def sample() -> None:
            with budget:
                for piece in self.pieces(items.put):
                    items.put(piece)

        def run() -> None:
            try:
                context.run(sample)
            except BaseException as error:  # raised by the generator
                items.put(error)
            else:
                items.put(None)

        thread, finished, done = Thread(target=run), "", 0
        blocks = blocks_of(self._pipe.session, self._request, self._block_length)
        total = len(self._request.plan) * len(blocks)
        thread.start()
        try:
            while (item := items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, str):
                    finished += item
                    yield TextState(finished, item, done, total)
                    continue
                for event in cast("Sequence[Event]", item):
                    done += 1
                    yield TextState(self._text_of(event.tokens), "", done, total)
        finally:
            budget.cancel()
            thread.join()

    def _text_of(self, tokens: Sequence[int]) -> str:
        mask_id = self._pipe.schedule.vocab.mask_id
        first = self._request.first_blank if self._is_answer else 0
        pairs = list(zip(self._pipe.decoder.whole(tokens), tokens, strict=True))[first:]
        return "".join("[MASK]" if token == mask_id else text for text, token in pairs)


async def score_tokens(
    pipe: Pipeline, tokens: Sequence[int], processors: tuple[Processor, ...] = ()
) -> Frame:
    """Return the prediction on a text of any length at the lowest noise level, by windows."""
    parts = windows(len(tokens), pipe.window)
    read = [scoring_request(tokens[part.start : part.stop], processors) for part in parts]
    frames = await predict_frames(pipe.session, read)
    # a frame is an index, a step, a time and then tensors over positions
    columns = [
        [x[part.own_slice] for x in frame[3:]] for frame, part in zip(frames, parts, strict=True)
    ]
    return Frame(0, "end", CLEAN_TIME, *map(torch.cat, zip(*columns, strict=True)))


def scoring_request(
    tokens: Sequence[int], processors: tuple[Processor, ...] = (), guidance: Guidance | None = None
) -> Request:
    """Return a request whose frame has the prediction on a text at the lowest noise level."""
    return Request(
        tokens=tuple(tokens),
        plan=_SCORING,
        protected=(False,) * len(tokens),
        processors=processors,
        guidance=guidance,
    )


async def predict_frames(session: Session, requests: Sequence[Request]) -> list[Frame]:
    """Return the prediction before the first step of each request, here of `scoring_request`s."""
    samples = await session.run_all(requests, record_frames=True)
    return [sample.frames[0] for sample in samples]


def frames_of_masking(sample: Sample, mask_id: int | None) -> tuple[Frame, ...]:
    """Return the frames of a sample of a masking-only model, and a frame of its final state.

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
