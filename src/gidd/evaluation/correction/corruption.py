"""Known errors in clean text: random tokens, exchanged neighbours, wrong letters.

Every error is a function of (seed, text, position): the same text gets the same errors in any order
of texts, and the errors at a lower rate are a subset of those at a higher one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple, final, get_args

import torch

from gidd.common.allowed import SEED, choice, require_arguments
from gidd.data.tokenizers import TOKENIZER_FILE
from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers
from gidd.evaluation.correction.correction_settings import RATE, CorruptionName
from gidd.pipeline.text import TokenTexts


class CorruptedText(NamedTuple):
    """A text with errors, and the right value of each of its units (tokens or words)."""

    tokens: tuple[int, ...]
    """Tokens of the text with errors."""

    clean: tuple[int | str, ...]
    """Each unit without errors: a token, or the text of a word."""

    word_of: tuple[int, ...] | None = None
    """Word of each token; None if units are tokens."""

    def units(self, tokens: Sequence[int], token_texts: TokenTexts) -> list[int | str]:
        """Return the units of other tokens at the same positions, such as the corrected ones."""
        if self.word_of is None:
            return list(tokens)
        words = [""] * len(self.clean)
        for word, text in zip(self.word_of, token_texts(tokens), strict=True):
            words[word] += text
        return list(words)


@final
class Corruption:
    """Adds errors of one kind at one rate to texts of at most `max_tokens` tokens."""

    def __init__(
        self, kind: CorruptionName, rate: float, token_texts: TokenTexts, max_tokens: int, seed: int
    ) -> None:
        require_arguments(
            corruption=(kind, choice(get_args(CorruptionName))),
            rate=(rate, RATE),
            seed=(seed, SEED),
        )
        self.kind, self.rate, self.seed = kind, rate, seed
        self.token_texts, self.max_tokens = token_texts, max_tokens

    def __call__(self, tokens: Sequence[int]) -> CorruptedText:
        """Return the text with errors; with wrong letters it may be cut to fit `max_tokens`."""
        draw = _draws(self.seed, tokens)
        if self.kind == "letters":
            return self._letters("".join(self.token_texts(tokens)), draw)
        change = self._replace if self.kind == "tokens" else self._swap
        return CorruptedText(tuple(change(tokens, draw)), tuple(tokens))

    @cached_property
    def ordinary(self) -> list[int]:
        """Tokens that may become wrong or be written as an error: those correction may change."""
        texts, tokenizer = self.token_texts, self.token_texts.tokenizer
        added = json.loads(tokenizer.files()[TOKENIZER_FILE])["added_tokens"]
        special = {token["id"] for token in added if token["special"]}
        special |= {tokenizer.vocab.mask_id, *tokenizer.terminator_ids}
        excluded = special | texts.fixed
        return [v for v in range(tokenizer.vocab.size) if v not in excluded and texts.of(v)]

    @cached_property
    def _index(self) -> dict[int, int]:
        return {token: index for index, token in enumerate(self.ordinary)}

    def _is_hit(self, u: int) -> bool:
        return u < self.rate * 2**UNIT_BITS

    def _replace(self, tokens: Sequence[int], draw: _Draw) -> list[int]:
        is_wrong, which = draw(0, len(tokens)), draw(1, len(tokens))
        new = list(tokens)
        for i, token in enumerate(tokens):
            if token in self._index and len(self.ordinary) > 1 and self._is_hit(is_wrong[i]):
                other = _below(which[i], len(self.ordinary) - 1)
                new[i] = self.ordinary[other + (other >= self._index[token])]  # never itself
        return new

    def _swap(self, tokens: Sequence[int], draw: _Draw) -> list[int]:
        is_wrong, new = draw(0, len(tokens)), list(tokens)
        first = _below(draw(1, 1)[0], 2)  # pairs begin at even or at odd positions
        for i in range(first, len(tokens) - 1, 2):
            if {*tokens[i : i + 2]} <= self._index.keys() and self._is_hit(is_wrong[i]):
                new[i : i + 2] = tokens[i + 1], tokens[i]
        return new

    def _letters(self, text: str, draw: _Draw) -> CorruptedText:
        words, characters = list(re.finditer(r"\S+", text)), list(text)
        is_wrong, place, letter = (draw(step, len(words)) for step in range(3))
        for i, word in enumerate(words):
            letters = [
                at for at in range(*word.span()) if text[at].isascii() and text[at].isalpha()
            ]
            if letters and self._is_hit(is_wrong[i]):
                at = letters[_below(place[i], len(letters))]
                alphabet = ascii_lowercase if text[at].islower() else ascii_uppercase
                others = alphabet.replace(text[at], "")
                characters[at] = others[_below(letter[i], len(others))]
        given = "".join(characters)
        tokens = self.token_texts.encode(given, "a text with wrong letters")
        while len(tokens) > self.max_tokens:  # a misspelt word has more tokens
            fitting = sum(map(len, self.token_texts(tokens)[: self.max_tokens]))
            kept = given[: min(fitting, len(given) - 1)]
            given = re.sub(r"(?<=\S)\s+\S*\Z", "", kept) or kept
            tokens = self.token_texts.encode(given, "a text with wrong letters")
        return self._by_words(tokens, text)

    def _by_words(self, tokens: Sequence[int], clean: str) -> CorruptedText:
        """Group tokens into words; `clean` has the same number of characters as their text."""
        texts = self.token_texts(tokens)
        word_of = _words(texts)
        ends = accumulate(map(len, texts), initial=0)
        words = [""] * (max(word_of, default=-1) + 1)
        for word, (start, stop) in zip(word_of, pairwise(ends), strict=True):
            words[word] += clean[start:stop]
        return CorruptedText(tuple(tokens), tuple(words), tuple(word_of))


def _words(texts: Sequence[str]) -> list[int]:
    """Return the word of each token: a word is preceded by its space, and ends before the next."""
    word_of: list[int] = []
    word, has_letters, previous = 0, False, ""
    for text in texts:
        if has_letters and (text[:1].isspace() or previous[-1:].isspace()):
            word, has_letters = word + 1, False
        has_letters = has_letters or bool(text.strip())
        word_of.append(word)
        previous = text
    return word_of


_Draw = Callable[[int, int], list[int]]
"""(use, number) -> that number of fixed-point uniforms of a text."""


def _draws(seed: int, tokens: Sequence[int]) -> _Draw:
    """Return the random numbers of a text, addressed by its tokens and not by its place."""
    content = ",".join(map(str, tokens)).encode()
    sample = torch.tensor([int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1])

    def draw(step: int, count: int) -> list[int]:
        return random_integers(seed, Stream.CORRUPTION, step, sample, torch.arange(count))[
            0
        ].tolist()

    return draw


def _below(u: int, count: int) -> int:
    """Return an integer in [0, count) from a fixed-point uniform."""
    return u * count >> UNIT_BITS
