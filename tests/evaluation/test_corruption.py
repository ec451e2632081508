"""Known errors: exact rates and distributions, and the same errors in any order of texts."""

import pytest
import torch
from support.sampling_worlds import chi_square_p
from support.small_model import TEXT

from gidd.data.tokenizers import character_level, train_tokenizer
from gidd.errors import ConfigError
from gidd.evaluation.correction.corruption import Corruption
from gidd.pipeline.text import TokenTexts

LETTERS = TokenTexts(character_level("abcdefgh"))
LENGTH = 60


def numbered(count: int, length: int = LENGTH) -> list[list[int]]:
    """Different texts: each begins with its number in base 8, then repeats "abcdefgh"."""
    return [
        [i // 512 % 8, i // 64 % 8, i // 8 % 8, i % 8, *(j % 8 for j in range(length - 4))]
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def speech() -> TokenTexts:
    return TokenTexts(train_tokenizer([TEXT, "Peace – and “plenty” for 🙂 all."], 300))


def corruption(kind, rate, texts=LETTERS, max_tokens=LENGTH, seed=0):
    return Corruption(kind, rate, texts, max_tokens, seed)


def test_tokens_are_replaced_at_the_rate_by_any_other_token_equally_often():
    change, clean = corruption("tokens", 0.1), numbered(250)
    texts = [change(tokens) for tokens in clean]
    wrong = torch.tensor([text.tokens for text in texts]) != torch.tensor(clean)
    counts = torch.tensor([wrong.sum(), (~wrong).sum()]).double()
    assert chi_square_p(counts, torch.tensor([0.1, 0.9])) > 0.01
    new, old = torch.tensor([text.tokens for text in texts])[wrong], torch.tensor(clean)[wrong]
    shift = torch.bincount((new - old) % 8, minlength=8).double()
    assert shift[0] == 0
    assert chi_square_p(shift[1:], torch.full((7,), 1 / 7)) > 0.01


def test_pairs_of_neighbours_are_exchanged_at_the_rate():
    change, clean = corruption("swap", 0.2), numbered(250)
    exchanged = pairs = 0
    starts = set()
    for tokens in clean:
        new = change(tokens).tokens
        assert sorted(new) == sorted(tokens)
        places = [i for i in range(LENGTH) if new[i] != tokens[i]]
        for i in places[::2]:  # of equal neighbours nothing is seen
            assert (new[i], new[i + 1]) == (tokens[i + 1], tokens[i])
            if i >= 4:
                starts.add(i)
        exchanged += sum(i >= 4 for i in places) / 2
        pairs += (LENGTH - 4) / 2
    counts = torch.tensor([exchanged, pairs - exchanged])
    assert chi_square_p(counts, torch.tensor([0.2, 0.8])) > 0.01
    assert {i % 2 for i in starts} == {0, 1}


def test_one_letter_of_a_word_is_replaced_at_the_rate(speech):
    clean = [speech.tokenizer.encode(f"number {i}: {TEXT}") for i in range(100)]
    change = corruption("letters", 0.3, speech, max_tokens=1000)
    words = wrong = 0
    for tokens in clean:
        text = change(tokens)
        given = text.units(text.tokens, speech)
        assert "".join(text.clean) == speech.tokenizer.decode(tokens)
        for right, now in zip(text.clean, given, strict=True):
            differences = [(a, b) for a, b in zip(right, now, strict=True) if a != b]
            assert len(differences) <= 1
            assert all(a.isalpha() and b.isalpha() for a, b in differences)
            assert all(a.islower() == b.islower() for a, b in differences)
            words += any(c.isalpha() for c in right)
            wrong += bool(differences)
    assert (
        chi_square_p(torch.tensor([wrong, words - wrong]).double(), torch.tensor([0.3, 0.7])) > 0.01
    )


@pytest.mark.parametrize("kind", ["tokens", "swap", "letters"])
def test_special_tokens_line_breaks_and_parts_of_characters_stay(kind, speech):
    tokenizer = speech.tokenizer
    tokens = [*tokenizer.encode("Peace 🙂\nand\tplenty\n"), tokenizer.end_id]
    text = corruption(kind, 1.0, speech, max_tokens=1000)(tokens)
    special = {tokenizer.end_id, tokenizer.vocab.pad_id, tokenizer.vocab.mask_id}
    if kind == "letters":  # special tokens have no text of their own
        given = "".join(map(str, text.units(text.tokens, speech)))
        kept = [c for c in given if c in "🙂\n\t"]
        assert kept == ["🙂", "\n", "\t", "\n"]
        assert not special & set(text.tokens)
        return
    assert text.tokens[-1] == tokenizer.end_id
    assert not special & set(text.tokens[:-1])
    fixed = [i for i, token in enumerate(tokens) if speech.is_fixed(token)]
    assert len(fixed) >= 4
    assert [text.tokens[i] for i in fixed] == [tokens[i] for i in fixed]
    changed = [i for i, token in enumerate(tokens) if text.tokens[i] != token]
    assert changed
    assert not any(speech.is_fixed(text.tokens[i]) for i in changed)


@pytest.mark.parametrize("kind", ["tokens", "swap", "letters"])
def test_errors_depend_on_seed_and_text_and_grow_with_the_rate(kind, speech):
    tokens = speech.tokenizer.encode(TEXT)
    other = speech.tokenizer.encode("Peace and plenty for all of us.")
    change = corruption(kind, 0.3, speech, 1000)
    first = [change(tokens), change(other)]
    assert [change(other), change(tokens)] == first[::-1]
    assert corruption(kind, 0.3, speech, 1000, seed=1)(tokens) != first[0]

    def wrong(rate: float) -> set[int]:
        text = corruption(kind, rate, speech, 1000)(tokens)
        given = "".join(map(str, text.units(text.tokens, speech)))
        if kind == "letters":
            return {i for i, (a, b) in enumerate(zip(given, TEXT, strict=True)) if a != b}
        return {i for i, token in enumerate(tokens) if text.tokens[i] != token}

    assert wrong(0.1) <= wrong(0.3) <= wrong(1.0)
    assert len(wrong(0.1)) < len(wrong(1.0))


def test_a_text_that_no_longer_fits_is_cut_after_a_word(speech):
    tokens = speech.tokenizer.encode(TEXT)
    text = corruption("letters", 1.0, speech, max_tokens=20)(tokens)
    assert 10 < len(text.tokens) <= 20
    clean = "".join(map(str, text.clean))
    assert TEXT.startswith(clean)
    assert TEXT[len(clean)] == " "


def test_invalid_settings_are_named():
    with pytest.raises(ConfigError, match="rate"):
        corruption("tokens", 0.0)
    with pytest.raises(ConfigError, match="typos"):
        corruption("typos", 0.1)
