"""The answer of a model to a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gidd.common.config.allowed import integer, optional, require_arguments
from gidd.data.chat import Messages, answer_end, check_messages, render_prompt
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError
from gidd.pipeline.generate import build_requests, constrained_text, pattern_of
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.results import Generation
from gidd.sampling import Budget, Processor, Request, ban
from gidd.sampling.request import prompt as with_blanks

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline

_MAX_DEFAULT_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """The answer to a conversation."""

    text: str
    """The answer, without white space around it."""
    messages: list[dict[str, str]]
    """The conversation with the answer."""
    num_dropped: int
    """Number of the oldest messages that were left out, because they did not fit."""
    generation: Generation
    """Prompt and answer as they were sampled."""


class AnswerEnd(NamedTuple):
    """The tokens and strings that end an answer."""

    tokens: frozenset[int]
    """End-of-text, padding and the token that the chat template writes after an answer."""
    strings: tuple[str, ...]
    """Stop strings; one of them is what the template writes, if that is no special token."""


def answer_end_of(tokenizer: Tokenizer, stop: Sequence[str] = ()) -> AnswerEnd:
    """Return the tokens and strings that end an answer: of the chat template, and `stop`."""
    written = answer_end(tokenizer)
    first = frozenset(tokenizer.encode_with_special(written)[:1])
    if first <= tokenizer.special_ids:
        return AnswerEnd(tokenizer.terminator_ids | first, tuple(stop))
    return AnswerEnd(tokenizer.terminator_ids, (*stop, written))


def build_chat_request(
    pipe: Pipeline,
    messages: Messages,
    max_tokens: int | None,
    seed: int,
    stop: Sequence[str],
    pattern: str | None,
    schema: Mapping[str, Any] | None,
    options: SamplingOptions,
    further_processors: Sequence[Processor] = (),
) -> tuple[Request, tuple[str, ...], int]:
    """Return the request of an answer, its stop strings, and the number of dropped messages.

    All tokens of the prompt are given. Special tokens that do not end an answer are never written.
    """
    check_messages(messages, "the chat")
    if messages[-1]["role"] == "assistant":
        raise DataError("the chat: the last message must not be an answer of the assistant.")
    require_arguments(max_tokens=(max_tokens, optional(integer(1, fix="It counts new tokens."))))
    least = max_tokens or min(_MAX_DEFAULT_TOKENS, pipe.context // 4)
    tokens, num_dropped = _encode_what_fits(pipe, messages, pipe.context - least)
    room = min(_MAX_DEFAULT_TOKENS, max(1, pipe.context - len(tokens)))
    length = pipe.length_with(max_tokens or room, len(tokens))
    end, vocab = answer_end_of(pipe.tokenizer, stop), pipe.schedule.vocab
    ends, sequence = tuple(sorted(end.tokens)), with_blanks(length, tokens)
    if pattern is not None or schema is not None:
        written = pattern_of(pattern, schema, stop)
        tail = "|".join(map(re.escape, end.strings))
        pattern = rf"\s?(?:{written})" + (rf"(?:(?:{tail})[\s\S]*)?" if tail else "")
    constraints = constrained_text(pipe, sequence, ends, pattern)
    settings = options, None, 1, seed, 0, constraints, further_processors
    (request,) = build_requests(pipe, sequence, ends, *settings)
    banned = {v for v in pipe.tokenizer.special_ids - end.tokens if v < vocab.size}
    processors = (ban(vocab, banned), *request.processors)
    return replace(request, processors=processors), end.strings, num_dropped


def _encode_what_fits(
    pipe: Pipeline, messages: Messages, most_tokens: int
) -> tuple[list[int], int]:
    """Return the tokens of the prompt, and the number of messages that are left out.

    A system message and the last message of the user stay, however long they are. As the template
    writes fewer tokens for fewer messages, the first turn that fits is found by bisection from the
    end: what is encoded is proportional to what fits.
    """
    first, longest = int(messages[0]["role"] == "system"), pipe.tokenizer.longest_token
    later = [i for i, message in enumerate(messages) if i > first and message["role"] == "user"]
    starts, budget = [first, *later], Budget.current()

    def encode(index: int) -> list[int] | None:
        """Return the tokens from a turn on, None if they do not fit; the last turn always does."""
        budget.check()
        text = render_prompt(pipe.tokenizer, [*messages[:first], *messages[starts[index] :]])
        is_last = index == len(starts) - 1
        if is_last and longest and len(text) > pipe.context * longest:
            raise DataError(
                f"the last message must fit into the model's context of {pipe.context} tokens, got "
                f"{len(messages[-1]['content']):,} characters. Shorten it."
            )
        if not is_last and longest and len(text) > most_tokens * longest:
            return None
        tokens = pipe.tokenizer.encode_with_special(text)
        return tokens if is_last or len(tokens) <= most_tokens else None

    if (tokens := encode(0)) is not None:
        return tokens, 0
    low, high, step = 0, len(starts) - 1, 1
    tokens = encode(high)
    while high - low > 1:
        middle = max((low + high) // 2, high - step)
        if (fitting := encode(middle)) is None:
            low = middle
        else:
            tokens, high, step = fitting, middle, 2 * step
    return tokens or [], starts[high] - first


def is_chat_model(pipe: Pipeline) -> bool:
    """Whether a model has a chat template, or says that it was trained on chats."""
    trained_on = pipe.source.get("data", {}).get("format")
    return pipe.tokenizer.chat_template is not None or trained_on == "chat"
