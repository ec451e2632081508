"""Chats: messages of JSON lines, written by the tokenizer's chat template, as tokens.

The tokens of answers are generated and scored; all others are given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

from gidd.common.files import PIECE_CHARACTERS, Limit
from gidd.common.terminal import shorten
from gidd.data.corpora import CorpusSource, resolve
from gidd.data.corpora.documents import named
from gidd.data.corpora.formats import whole_lines
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

Messages = Sequence[dict[str, str]]
"""Messages {"role": "user", "content": "Hello"}, in the order of the conversation."""

CHAT_MESSAGES = Limit(1000, "messages", "GIDD_MAX_CHAT_MESSAGES")
"""Of a conversation to learn from."""

_FEW_MESSAGES = 8
_SHORT_CHAT = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "answer"}]
ROLES = ("system", "user", "assistant")
_EXAMPLES = 'as {"prompt": "2 + 3", "response": "5"} or {"messages": [{"role": "user", ...}, ...]}'

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ message.role | capitalize }}: {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %}"
)
"""For tokenizers without a chat template: User: 2 + 3, a line break, Assistant: 5, end-of-text."""


class EncodedChat(NamedTuple):
    """The tokens of a chat."""

    tokens: list[int]
    given: list[bool]
    """False for the tokens of answers and of the end of answers."""


def chat_texts(sources: CorpusSource | Sequence[CorpusSource]) -> Iterator[str]:
    """Yield the text of every conversation of some JSON lines, to train a tokenizer on."""
    for source in map(whole_lines, resolve(sources)):
        for line in source.texts():
            messages = parse_chat(line, source.name)
            turns = ((turn["role"].capitalize(), turn["content"]) for turn in messages)
            yield "\n".join(f"{role}: {content}" for role, content in turns)


def parse_chat(line: str, place: str) -> Messages:
    """Return the messages of a JSON line, in one of two forms; `place` names it in errors."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}). Fix the line or leave it out.") from error
    if isinstance(record, dict) and "messages" in record:
        messages: Any = record["messages"]
    elif isinstance(record, dict) and {"prompt", "response"} <= record.keys():
        pair = ("user", record["prompt"]), ("assistant", record["response"])
        messages = [{"role": role, "content": content} for role, content in pair]
    else:
        raise DataError(f"{place}: a chat must be written {_EXAMPLES}, got {shorten(record)}.")
    return check_messages(messages, place)


def check_messages(messages: Any, place: str) -> Messages:
    """Return messages whose roles and contents are valid; otherwise raise `DataError`."""
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(f"{place}: messages must be a list of messages, got {shorten(messages)}.")
    for message in cast("list[Any]", messages):
        known = isinstance(message, dict) and message.get("role") in ROLES
        if not known or not isinstance(message.get("content"), str):
            raise DataError(
                f"{place}: a message must have a role ({', '.join(ROLES)}) and a string as "
                f"content, got {shorten(message)}."
            )
    return cast("list[dict[str, str]]", messages)


def render(tokenizer: Tokenizer, messages: Messages, *, add_generation_prompt: bool = False) -> str:
    """Return the messages in the chat template, optionally with the start of the next answer."""
    template = _compiled(tokenizer.chat_template or DEFAULT_TEMPLATE)
    values = {"messages": messages, "add_generation_prompt": add_generation_prompt}
    try:
        return template.render(values, tools=None, documents=None, **tokenizer.named_tokens)
    except Exception as error:  # the template is a program, with messages of its own
        raise DataError(f"the chat template refuses the messages: {error}") from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    """Compile a template that is not trusted: it can neither change objects nor reach files."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks answers for other programs; here it changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": time.strftime}
    try:
        return environment.from_string(source)
    except Exception as error:  # besides TemplateError those of Python's compiler
        raise DataError(f"the chat template is not valid: {error}.") from error


def encode_chat(tokenizer: Tokenizer, messages: Messages, place: str = "the chat") -> EncodedChat:
    """Encode a chat that ends with an answer; end-of-text follows the last answer."""
    with named(place):
        if messages[-1]["role"] != "assistant":
            raise DataError("the last message must be an answer of the assistant.")
        CHAT_MESSAGES.require(
            len(messages), "a chat", DataError
        )  # at worst an answer renders all before
        _require_no_special_tokens(tokenizer, messages)
        tokens, given = list[int](), list[bool]()
        for piece, is_given in _pieces_by_turn(tokenizer, messages) or _pieces(tokenizer, messages):
            PIECE_CHARACTERS.require(len(piece), "an answer, or what is before it,", DataError)
            ids = tokenizer.encode_with_special(piece)
            tokens += ids
            given += [is_given] * len(ids)
        if tokenizer.vocab.mask_id in tokens:
            raise DataError(f"the chat template writes the mask {tokenizer.mask}. Change it.")
    if tokens[-1] != tokenizer.end_id:
        tokens.append(tokenizer.end_id)
        given.append(False)
    return EncodedChat(tokens, given)


def _pieces(
    tokenizer: Tokenizer, messages: Messages, stand_in: Messages = ()
) -> list[tuple[str, bool]]:
    """Return what the template writes before and in each answer, and whether it is given.

    `stand_in` is read in place of all messages before a turn, except before the first one.
    """
    pieces, start, text = list[tuple[str, bool]](), 0, ""
    for end, message in enumerate(messages, start=1):
        if message["role"] == "assistant":
            turns = [*stand_in, *messages[start:end]] if start and stand_in else messages[:end]
            prompt = render(tokenizer, turns[:-1], add_generation_prompt=True)
            answered = render(tokenizer, turns)
            if not (prompt.startswith(text) and answered.startswith(prompt)):
                raise DataError(
                    "the chat template must write a conversation so that it continues the "
                    "shorter ones, but it rewrites earlier messages. Use one answer per chat, "
                    "or another chat_template."
                )
            pieces += [(prompt[len(text) :], True), (answered[len(prompt) :], False)]
            start, text = end, render(tokenizer, stand_in) if stand_in else answered
    return pieces


def _pieces_by_turn(tokenizer: Tokenizer, messages: Messages) -> list[tuple[str, bool]]:
    """Return the pieces of a long chat in time that grows linearly, [] if it cannot be done.

    It can if the template writes a turn after all others as it does after a short one.
    """
    if len(messages) <= _FEW_MESSAGES:
        return []
    try:
        pieces = _pieces(tokenizer, messages, _SHORT_CHAT)
    except DataError:
        return []
    whole = render(tokenizer, messages)
    return pieces if "".join(piece for piece, _ in pieces) == whole else []


def render_prompt(tokenizer: Tokenizer, messages: Messages) -> str:
    """Return the text before an answer; messages cannot contain the names of special tokens."""
    _require_no_special_tokens(tokenizer, messages)
    return render(tokenizer, messages, add_generation_prompt=True)


def _require_no_special_tokens(tokenizer: Tokenizer, messages: Messages) -> None:
    """Refuse the names of special tokens in any field of a message: a template may write it."""
    for index, message in enumerate(messages, start=1):
        for text in _strings(message):
            PIECE_CHARACTERS.require(len(text), f"message {index}", DataError)
            if name := tokenizer.special_name_in(text):
                raise DataError(
                    f"message {index} must not contain the special token {name}, got "
                    f"{shorten(text)}. Write it differently, or leave the chat out."
                )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        parts = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        for part in cast("Iterable[object]", parts):
            yield from _strings(part)


def answer_end(tokenizer: Tokenizer) -> str:
    """Return what the template writes after an answer, such as "<|im_end|>"; "" if nothing."""
    return render(tokenizer, _SHORT_CHAT).rpartition(_SHORT_CHAT[-1]["content"])[2].strip()
