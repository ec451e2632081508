"""Texts with characters that a model of characters does not have: read, and restored."""

import pytest
from hypothesis import given, strategies as st

from gidd.data.tokenizers import byte_level, train_characters
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import DataError
from gidd.pipeline import Pipeline
from gidd.pipeline.text import TokenDecoder, ban_unwritten_tokens
from tests.support.small_model import CONTEXT, random_denoiser

LETTERS = TokenDecoder(train_characters(['the cat\'s "hat" - 1.\n']))
(UNKNOWN,) = LETTERS.tokenizer.unknown_ids
STRANGE = "The “cat” – ☃☃\r\n\tnaïve\u00a0e\u0301 [UNK] \ufffd\ufffd東\0"
ANY = st.text(max_size=60) | st.text(st.sampled_from(STRANGE + 'the cat"s\n'), max_size=60)


@given(text=ANY, place=st.integers(0, 59))
def test_every_text_is_restored_around_a_change(text, place):
    given_text = LETTERS.encode_with_offsets(text, "it")
    assert len(given_text.tokens) == len(text)
    assert "".join(given_text.texts) == text
    assert "".join(LETTERS.decode_like(given_text.tokens, given_text)) == text
    for character, token, is_fixed in zip(text, given_text.tokens, given_text.fixed, strict=True):
        assert not is_fixed or character not in "the cat's"
        assert is_fixed or not (character in "\n\r\t\0\x85\u2028\ufffd" or token == UNKNOWN)
    if place < len(text):
        new = list(given_text.tokens)
        (letter,) = LETTERS.tokenizer.encode("h" if text[place] != "h" else "t")
        if new[place] != letter:
            new[place] = letter
            expected = text[:place] + LETTERS.decode_one(letter) + text[place + 1 :]
            assert "".join(LETTERS.decode_like(new, given_text)) == expected


def test_what_the_network_reads():
    read = LETTERS.encode_with_offsets("“cat”\t☃ é\n", "it")
    seen = ['"', "c", "a", "t", '"', " ", "[UNK]", " ", "e", "\n"]
    assert [LETTERS.decode_one(token) for token in read.tokens] == seen
    assert read.fixed == (*[False] * 5, True, True, False, False, True)
    assert LETTERS(read.tokens) == seen


def test_characters_that_cannot_be_decoded_are_ordinary_ones_if_known():
    texts = TokenDecoder(train_characters(["a\ufffd"]))
    read = texts.encode_with_offsets("a\ufffd\ufffd", "it")
    assert texts(read.tokens) == list(read.texts) == ["a", "\ufffd", "\ufffd"]
    assert read.fixed == (False, True, True)


def test_the_unknown_token_is_never_written():
    assert UNKNOWN in LETTERS.fixed_ids
    assert LETTERS.is_fixed(UNKNOWN)
    vocab = LETTERS.tokenizer.vocab
    banned = ban_unwritten_tokens(vocab, LETTERS)
    assert {UNKNOWN, *LETTERS.tokenizer.terminator_ids} <= banned.tokens
    assert not set(LETTERS.tokenizer.encode("the cat")) & banned.tokens


def test_other_tokenizers_give_the_same_by_both_ways():
    texts = TokenDecoder(byte_level())
    read = texts.encode_with_offsets(STRANGE, "it")
    assert list(read.tokens) == texts.encode(STRANGE, "it")
    assert list(read.texts) == texts(read.tokens) == texts.decode_like(read.tokens, read)
    assert "".join(read.texts) == STRANGE
    assert read.fixed == tuple(map(texts.is_fixed, read.tokens))
    # a change may complete a character, so all texts are those of the new tokens
    new = texts.encode(STRANGE.replace("☃☃", "☃☄"), "it")
    assert "".join(texts.decode_like(new, read)) == STRANGE.replace("☃☃", "☃☄")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the ☃", r"'☃' at character 4\. Remove it"),
        ("the “cat”", r"'“' at character 4\. Write '\"'"),
        ("Tee", r"'T' at character 0\. Write 't'"),
    ],
)
def test_a_prompt_must_be_in_the_vocabulary(text, message):
    with pytest.raises(DataError, match=f"the prompt .*vocabulary only.*{message}"):
        LETTERS.encode(text, "the prompt")
    assert LETTERS.encode("the cat", "it") == LETTERS.tokenizer.encode("the cat")


def test_lone_surrogates_are_refused():
    for read in (
        LETTERS.encode_with_offsets,
        LETTERS.encode,
        TokenDecoder(byte_level()).encode_with_offsets,
    ):
        with pytest.raises(DataError, match=r"it must be valid Unicode.*character 2"):
            read("ab\udc80", "it")


@pytest.mark.parametrize(
    ("method", "options"), [("correct", {"error_rate": 0.3}), ("self_correct", {})]
)
def test_a_correction_keeps_what_it_does_not_change(method, options):
    vocab = LETTERS.tokenizer.vocab
    schedule = HybridSchedule(vocab, 0.5)
    pipe = Pipeline(random_denoiser(vocab), schedule, LETTERS.tokenizer, context=CONTEXT)
    text = STRANGE * 3  # several windows
    read = LETTERS.encode_with_offsets(text, "it")
    result = getattr(pipe, method)(text, **options)
    assert result.original == text
    assert len(result.text) == len(text)
    changed = [i for i in range(len(text)) if result.text[i] != text[i]]
    assert changed
    replaced = result.changes if method == "correct" else result.replacements
    assert [r.start for r in replaced] == changed
    for replacement in replaced:
        i = replacement.start
        assert not read.fixed[i]
        assert (replacement.old, replacement.new) == (text[i], result.text[i])
        assert result.text[i] in 'the cat\'s "hat" - 1.'
