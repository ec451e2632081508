"""Endpoints: functions of a request's body that call a pipeline and return JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from gidd.errors import DataError
from gidd.pipeline import Generation, Pipeline, SelfCorrectionOptions
from gidd.pipeline.generate import StreamEnd
from gidd.pipeline.noise_level import reading_cost
from gidd.pipeline.score import TokenProbability
from gidd.sampling import (
    Budget,
    Edit,
    Event,
    LogitBias,
    OnStep,
    Processor,
    Request,
    TextWindows,
)
from gidd.serving.errors import ServiceError
from gidd.serving.protocol import (
    ChatBody,
    CompletionBody,
    CorrectBody,
    InfillBody,
    SampledBody,
    ScoreBody,
    WrittenBody,
)

Json = dict[str, Any]
Emit = Callable[[Any], None]

_OPTIONS = ("temperature", "top_k", "min_p", "steps", "sampler", "guidance_scale")
_LEAST_LOG = -9999.0  # in place of minus infinity, which is not JSON


def sampling_settings(pipe: Pipeline, body: SampledBody) -> Json:
    """Return the arguments of `generate`, `infill` and `chat`."""
    names = (*_OPTIONS, "negative_prompt", "block_length")
    settings = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    if body.top_p is not None:
        settings["top_p"] = body.top_p if body.top_p < 1 else None
    if body.self_correction is not None:
        settings["self_correction"] = SelfCorrectionOptions(forward_passes=body.self_correction)
    if isinstance(body, WrittenBody):
        settings |= _constraint(body)
    return settings | {"processors": _biases(pipe, body)}


def _constraint(body: WrittenBody) -> Json:
    """Return the pattern or schema of a body, as OpenAI's and vLLM's clients send it."""
    given: Json = {f"guided_{k}": getattr(body, f"guided_{k}") for k in ("regex", "json", "choice")}
    for name, value in (body.structured_outputs or {}).items():
        given[f"structured_outputs.{name}"] = value
    if (wanted := body.response_format) is not None and wanted.type != "text":
        given["response_format.json"] = wanted.schema_of_json
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise ServiceError(400, f"{first}: must be omitted with {second}.", param=first)
    for name, value in given.items():
        kind = name.rpartition("_" if name.startswith("guided_") else ".")[2]
        if kind == "json":
            return {"schema": _parse_schema(name, value)}
        if kind == "regex" and isinstance(value, str):
            return {"pattern": value}
        if kind == "choice" and value and all(isinstance(text, str) for text in value):
            return {"pattern": "|".join(map(re.escape, value))}
        raise ServiceError(400, f"{name}: must be a text, or a list of texts.", param=name)
    return {}


def _parse_schema(name: str, value: Any) -> Any:
    """Return a JSON Schema, which vLLM's clients may send as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ServiceError(400, f"{name}: must be a JSON Schema.", param=name) from error


def _biases(pipe: Pipeline, body: SampledBody) -> tuple[Processor, ...]:
    if not body.logit_bias:
        return ()
    if not all(re.fullmatch("0|[1-9][0-9]{0,9}", name) for name in body.logit_bias):
        raise ServiceError(400, "logit_bias: keys must be token ids.", param="logit_bias")
    biases = frozenset((int(name), bias) for name, bias in body.logit_bias.items())
    return (LogitBias(pipe.schedule.vocab, biases),)


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts of a completion, texts or tokens."""
    prompt: Any = body.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def _text_of(pipe: Pipeline, tokens: str | list[int]) -> str:
    """Return the text of a prompt; tokens must be what the tokenizer writes for it."""
    if isinstance(tokens, str):
        return tokens
    if all(token < pipe.schedule.vocab.size for token in tokens):
        text = "".join(pipe.decoder.whole(tokens))
        try:
            if pipe.decoder.encode(text, "the prompt") == tokens:
                return text
        except DataError:
            pass
    raise ServiceError(
        400, "prompt: tokens must be what the model's tokenizer writes for a text.", param="prompt"
    )


def complete(
    pipe: Pipeline, body: CompletionBody, index: int, seed: int, emit: Emit | None
) -> list[Json]:
    """Return the choices for the prompt with this index; emit frames if asked for."""
    prompt = _text_of(pipe, prompts_of(body)[index])
    generations = pipe.generate(
        prompt,
        n=body.n,
        suffix=body.suffix or "",
        max_tokens=body.max_tokens or 16,
        stop=_stop(body),
        seed=seed,
        start_index=index * body.n,
        on_step=frame_emitter(emit),
        confidence=body.logprobs is not None and not pipe.can_score_visible_tokens,
        **sampling_settings(pipe, body),
    )
    first = len(pipe.decoder.encode(prompt, "the prompt"))
    choices: list[Json] = []
    for k, generation in enumerate(generations):
        text = generation.filled[0]
        choice = _choice(generation, k, prompt + text if body.echo else text, first)
        choice["index"] += index * body.n
        if body.logprobs is not None:
            start, end = 0 if body.echo else first, first + choice["tokens"]
            choice["logprobs"] = _logprobs(pipe, generation, start, end, body.logprobs)
        choices.append(choice)
    return choices


def _choice(generation: Generation, index: int, text: str, num_given: int) -> Json:
    """Return a sample of a prompt with some tokens, which are counted once, for the first one."""
    blanks = sum(not is_given for is_given in generation.trace.protected)
    is_stopped = len(generation.tokens) < len(generation.trace.tokens)
    return {
        "index": index,
        "text": text,
        "finish_reason": "stop" if is_stopped else "length",
        "tokens": min(blanks, len(generation.tokens) - num_given),
        "prompt_tokens": 0 if index else num_given,
        "forward_passes": generation.forward_passes,
    }


def _stop(body: WrittenBody) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def complete_in_blocks(pipe: Pipeline, body: CompletionBody, seed: int, emit: Emit) -> None:
    """Emit (index, piece of text) for each block, and (index, how it ended) after each choice."""
    prompts = [_text_of(pipe, item) for item in prompts_of(body) for _ in range(body.n)]
    streams = [_pieces(pipe, body, prompt, k, seed) for k, prompt in enumerate(prompts)]
    for index, (prompt, pieces) in enumerate(zip(prompts, streams, strict=True)):
        _emit_pieces(pieces, index, emit, skipped=0 if body.echo else len(prompt))


def _emit_pieces(
    pieces: Generator[str, None, StreamEnd], index: int, emit: Emit, skipped: int = 0
) -> None:
    """Emit the pieces without some characters at their beginning, and how the text ended."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            emit((index, end.value))
            return
        if new := piece[skipped:]:
            emit((index, new))
        skipped = max(0, skipped - len(piece))


def _pieces(
    pipe: Pipeline, body: CompletionBody, prompt: str, index: int, seed: int
) -> Generator[str, None, StreamEnd]:
    settings: Json = sampling_settings(pipe, body) | {"prompt": prompt, "seed": seed}
    settings["max_tokens"] = body.max_tokens or 16
    if not body.suffix:  # here, so that the cost of all streams is reserved before the first
        return pipe.stream(stop=_stop(body), sample_index=index, **settings).pieces()
    settings |= {"suffix": body.suffix, "stop": _stop(body)}
    return _piece_between(pipe, prompt, index, settings)


def _piece_between(
    pipe: Pipeline, prompt: str, index: int, settings: Json
) -> Generator[str, None, StreamEnd]:
    (generation,) = pipe.generate(start_index=index, **settings)
    yield prompt + generation.filled[0]
    protected = generation.trace.protected
    num_given = len(pipe.decoder.encode(prompt, "the prompt"))
    return StreamEnd(num_given, len(protected) - sum(protected), is_stopped=False)


def _chat_settings(pipe: Pipeline, body: ChatBody, seed: int) -> Json:
    return sampling_settings(pipe, body) | {
        "messages": [message.plain for message in body.messages],
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "seed": seed,
        "stop": _stop(body),
    }


def answer(pipe: Pipeline, body: ChatBody, index: int, seed: int, emit: Emit | None) -> list[Json]:
    """Return the answer with this index to a conversation; emit frames if asked for."""
    settings = _chat_settings(pipe, body, seed + index)
    reply = pipe.chat(on_step=frame_emitter(emit), **settings)
    num_given = sum(reply.generation.trace.protected)
    return [_choice(reply.generation, index, reply.text, num_given)]


def answer_in_blocks(pipe: Pipeline, body: ChatBody, seed: int, emit: Emit) -> None:
    """Emit (index, piece of text) for each block, and (index, how it ended) after each answer."""
    settings = [_chat_settings(pipe, body, seed + index) for index in range(body.n)]
    for index, stream in enumerate([pipe.stream_chat(**options) for options in settings]):
        _emit_pieces(stream.pieces(), index, emit)


def infill(pipe: Pipeline, body: InfillBody, seed: int, emit: Emit | None) -> Json:
    """Return the text with its blanks filled, in `n` ways; emit frames if asked for."""
    generations = pipe.infill(
        body.text,
        n=body.n,
        choices=body.choices or {},
        seed=seed,
        on_step=frame_emitter(emit),
        confidence=True,
        **sampling_settings(pipe, body),
    )
    choices = [
        {
            "index": k,
            "text": generation.text,
            "filled": list(generation.filled),
            "tokens": _scored_tokens(pipe, generation.tokens, generation.confidence),
            "forward_passes": generation.forward_passes,
        }
        for k, generation in enumerate(generations)
    ]
    result: Json = {"seed": seed, "choices": choices}
    if body.choices:
        settings = sampling_settings(pipe, body)
        (result["probabilities"],) = pipe.choice_probabilities(body.text, body.choices, **settings)
    return result


def correct(pipe: Pipeline, body: CorrectBody, emit: Emit | None) -> Json:
    """Return a text with corrections; emit frames of self-correction if asked for."""
    if body.method == "self_correction":
        changed = pipe.self_correct(
            body.text,
            protected=body.protected,
            seed=body.seed,
            on_step=frame_emitter(emit),
            temperature=body.temperature,
            forward_passes=body.forward_passes,
        )
        edits = [
            _edit(replacement.start, replacement.old, replacement.new, replacement.confidence_after)
            for replacement in changed.replacements
        ]
        return {
            "text": changed.text,
            "edits": edits,
            "suggestions": [],
            "self_accuracy": list(changed.self_accuracy),
            "forward_passes": changed.forward_passes,
        }
    correction = pipe.correct(
        body.text,
        protected=body.protected,
        min_confidence=body.min_confidence,
        wrong_tokens=body.wrong_tokens,
        error_rate=body.error_rate,
    )
    noise = correction.noise_level
    places = [
        _edit(edit.start, edit.old, edit.new, edit.confidence)
        | {"alternatives": [other._asdict() for other in edit.alternatives]}
        for edit in correction.edits
    ]
    return {
        "text": correction.text,
        "edits": [edit for edit in places if edit["new"] != edit["old"]],
        "suggestions": [edit for edit in places if edit["new"] == edit["old"]],
        "error_rate": correction.error_rate,
        "error_rate_interval": None if noise is None else [noise.low, noise.high],
        "forward_passes": correction.forward_passes,
    }


def _edit(start: int, old: str, new: str, confidence: float) -> Json:
    stop = start + len(old)
    return {"start": start, "stop": stop, "old": old, "new": new, "confidence": confidence}


def score(pipe: Pipeline, body: ScoreBody) -> Json:
    """Return the likelihood of a text, and the probability of each of its tokens."""
    prompt_tokens = pipe.decoder.encode(body.prompt, "the prompt")
    tokens = pipe.encode(body.text, "the text")
    result: Json = {"text": body.text, "nelbo": None, "error_rate": None, "forward_passes": 0}
    if pipe.can_score_visible_tokens:
        cut = TextWindows(
            [*prompt_tokens, *tokens], [False] * (len(prompt_tokens) + len(tokens)), pipe.window
        )
        cost = reading_cost(pipe.window_reader(), cut, has_noise_level=body.likelihood)
        Budget.current().reserve(cost)
    if body.likelihood:
        scores = pipe.score(body.text, prompt=body.prompt, confidence=False, seed=body.seed)
        result |= {
            "nelbo": scores.nelbo,
            "standard_error": scores.standard_error,
            "nats_per_token": scores.nats_per_token,
            "perplexity": scores.perplexity,
            "forward_passes": scores.forward_passes,
        }
    if not pipe.can_score_visible_tokens:
        return result | {"tokens": _scored_tokens(pipe, tokens, None)}
    probabilities = pipe.token_probabilities([*prompt_tokens, *tokens], body.top)
    token_scores = probabilities[len(prompt_tokens) :]
    listed = _scored_tokens(pipe, tokens, [entry.probability for entry in token_scores])
    for entry, token_score in zip(listed, token_scores, strict=True):
        entry["alternatives"] = [
            {"text": pipe.decoder.decode_one(token), "probability": p}
            for token, p in token_score.top
        ]
    result["error_rate"] = pipe.noise_level(body.text).error_rate if body.likelihood else None
    return result | {"tokens": listed}


def _scored_tokens(pipe: Pipeline, tokens: Any, probabilities: Any) -> list[Json]:
    texts = pipe.decoder(tokens)
    values = probabilities or [None] * len(texts)
    return [{"text": text, "probability": p} for text, p in zip(texts, values, strict=True)]


def _logprobs(pipe: Pipeline, generation: Generation, start: int, end: int, top: int) -> Json:
    """Return log-probabilities as /v1/completions has them.

    A model trained with masking alone cannot score visible tokens: there the probability is the
    one with which a token was written, and no others are known.
    """
    tokens = list(generation.trace.tokens)
    texts = pipe.decoder.whole(tokens[:end])[start:]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    if pipe.can_score_visible_tokens:
        token_scores = pipe.token_probabilities(tokens, top)[start:end]
    else:
        written = generation.confidence or ()
        token_scores = [TokenProbability(p, ((tokens[i], p),)) for i, p in enumerate(written)][
            start:end
        ]
    decode = pipe.decoder.decode_one
    return {
        "tokens": texts,
        "token_logprobs": [_log(score.probability) for score in token_scores],
        "top_logprobs": [{decode(v): _log(p) for v, p in score.top} for score in token_scores],
        "text_offset": offsets,
    }


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else _LEAST_LOG


MASK = "░"
"""Stands for a token that is masked."""


@dataclass(frozen=True)
class StreamEvent:
    """A sequence after a step."""

    request: Request
    tokens: tuple[int, ...]
    start: int
    """The first blank; of a text that is sampled in blocks, of the first block."""
    step: int
    steps: int
    edits: tuple[Edit, ...]

    def after(self, other: object) -> StreamEvent | None:
        """Return this event merged with an earlier one; None for another sequence."""
        if isinstance(other, StreamEvent) and other.request is self.request:
            return replace(self, edits=(*other.edits, *self.edits))
        return None


def frame_emitter(emit: Emit | None) -> OnStep | None:
    """Return an `on_step` callback that emits a `StreamEvent` per sequence and step."""
    if emit is None:
        return None
    starts: dict[int, int] = {}

    def on_step(events: Sequence[Event]) -> None:
        for event in events:
            request, tokens = event.request, event.tokens
            start = starts.setdefault(request.sample_index, request.first_blank)
            if tokens:
                steps = event.steps_done, event.num_steps
                emit(StreamEvent(request, tokens, start, *steps, event.edits))

    return on_step


def describe_frame(
    pipe: Pipeline, frame: StreamEvent, start: int = 0, stop: int | None = None
) -> Any:
    """Return the text of some positions of a frame, and the edits there.

    Offsets of edits are characters of the text. The index is the one of the sample or, if a text is
    longer than the context, of the window that is corrected.
    """
    mask_id = pipe.schedule.vocab.mask_id
    tokens = frame.request.truncate_at_stop(frame.tokens)[start:stop]
    text_of = pipe.decoder if start else pipe.decoder.whole
    pairs = zip(text_of(tokens), tokens, strict=True)
    texts = [MASK if token == mask_id else text for text, token in pairs]
    starts = list(accumulate(map(len, texts), initial=0))
    last = {edit.position: edit for edit in frame.edits}
    edits = [
        {
            "start": starts[position - start],
            "end": starts[position - start + 1],
            "text": texts[position - start],
            "probability": round(edit.probability, 4),
        }
        for position, edit in sorted(last.items())
        if 0 <= position - start < len(texts)
    ]
    return {
        "index": frame.request.sample_index,
        "text": "".join(texts),
        "step": frame.step,
        "steps": frame.steps,
        "edits": edits,
    }
