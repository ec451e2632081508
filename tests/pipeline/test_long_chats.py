"""Conversations that do not fit: the oldest messages are left out, in time that grows linearly."""

from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from gidd.data.chat import render_prompt
from gidd.data.tokenizers import byte_level, train_characters, train_tokenizer
from gidd.data.tokenizers.tokenizer import Tokenizer
from gidd.errors import DataError, LimitReached
from gidd.pipeline.chat import _encode_what_fits
from gidd.sampling import Budget

WORDS = ["I", " embrace", "  with", "\n", "great satisfaction ", "é", "🙂🙂", "a" * 9, ""]
BRIEF = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content | trim }}{% endfor %}"
    "{% if messages | length > 9 %}{{ raise_exception('too many') }}{% endif %}"
)


@cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "bytes":
        return byte_level()
    if kind == "chars":
        return train_characters(["I embrace with great satisfaction a User Assistant : \n"])
    found = train_tokenizer(["User: I embrace with great satisfaction\nAssistant: aaaaaaaa"], 300)
    found.chat_template = BRIEF if kind == "template" else None
    return found


def first_that_fits(pipe, messages, most_tokens):
    """The definition: leave out one turn after the other until the rest fits."""
    first = int(messages[0]["role"] == "system")
    starts = [i for i, one in enumerate(messages) if i > first and one["role"] == "user"]
    for start in (first, *starts):
        text = render_prompt(pipe.tokenizer, [*messages[:first], *messages[start:]])
        tokens = pipe.tokenizer.encode_with_special(text)
        if len(tokens) <= most_tokens:
            break
    return tokens, start - first


contents = st.lists(st.sampled_from(WORDS), max_size=5).map("".join)
message = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "user", "assistant", "system"]),
    contents,
)


@pytest.mark.parametrize("kind", ["bytes", "chars", "words", "template"])
@given(st.lists(message, min_size=1, max_size=14), st.integers(1, 90))
def test_the_same_messages_stay_as_if_one_after_the_other_is_left_out(kind, messages, most_tokens):
    pipe = SimpleNamespace(tokenizer=tokenizer(kind), context=128)
    try:
        expected = first_that_fits(pipe, messages, most_tokens)
    except DataError as error:
        with pytest.raises(DataError) as caught:
            _encode_what_fits(pipe, messages, most_tokens)
        assert str(caught.value) == str(error)
    else:
        assert _encode_what_fits(pipe, messages, most_tokens) == expected


def conversation(turns: int, size: int = 90):
    pair = [{"role": "user", "content": "a b " * size}, {"role": "assistant", "content": "c"}]
    return [*pair * turns, {"role": "user", "content": "2 + 3"}]


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_the_characters_that_are_encoded_do_not_grow_with_what_is_left_out(kind, monkeypatch):
    pipe, encoded = SimpleNamespace(tokenizer=tokenizer(kind), context=256), []
    encode = Tokenizer.encode_with_special

    def count(self, text):
        encoded.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode_with_special", count)
    work = []
    for turns in (50, 500):
        encoded.clear()
        tokens, dropped = _encode_what_fits(pipe, conversation(turns), 200)
        assert len(tokens) <= 200 and dropped >= 2 * turns - 4
        work.append(sum(encoded))
    assert work[0] == work[1] < 20_000


def test_the_limits_of_a_call_end_it():
    pipe = SimpleNamespace(tokenizer=tokenizer("bytes"), context=64)
    with Budget(seconds=0.0), pytest.raises(LimitReached):
        _encode_what_fits(pipe, conversation(3), 60)
