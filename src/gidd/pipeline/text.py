"""Tokens and text: the text of each token, and windows over texts longer than the context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os.path import commonprefix
from typing import NamedTuple, final
from unicodedata import category

from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

_INVALID = "\N{REPLACEMENT CHARACTER}"
"""How bytes that are not a complete character are decoded."""

_LAYOUT = frozenset({"Cc", "Zl", "Zp"})
"""Unicode categories of control characters and of line and paragraph separators."""

_EXCERPT = 20
"""Characters of a text that an error message quotes."""

_MAX_PARTS = 16
"""Partial characters that are decoded together: a few characters, so that time stays linear."""


@final
class TokenTexts:
    """Splits a text into the text of each of its tokens.

    A byte-level token may be part of a character. The tokens of such a character share its text: it
    is assigned to the first of them, and the others get "".
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cache: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return one string per token; joined, they are the text."""
        texts = [self.of(token) for token in tokens]
        start = 0
        while start < len(texts):
            stop = start + 1
            if _INVALID in texts[start]:
                stop = self._end_of_characters(tokens, texts, start)
                text = self._decode(tokens[start:stop])
                texts[start:stop] = [text, *[""] * (stop - start - 1)]
            start = stop
        return texts

    def of(self, token: int) -> str:
        """Return the text of one token; it contains U+FFFD if the token is part of a character."""
        if token not in self._cache:
            self._cache[token] = self._decode([token])
        return self._cache[token]

    def is_fixed(self, token: int) -> bool:
        """Whether correction skips the token: line breaks, tabs and parts of characters."""
        return any(c == _INVALID or category(c) in _LAYOUT for c in self.of(token))

    def encode(self, text: str, what: str) -> list[int]:
        """Return the tokens of a text; raise if decoding them does not restore it exactly.

        `what` names the text in error messages.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{what} must be valid Unicode, got {text[error.start]!r} at character "
                f"{error.start}, a lone surrogate or a byte that is not UTF-8. Remove it."
            ) from error
        tokens = self.tokenizer.encode(text)
        back = "".join(self(tokens))
        if back != text:
            place = len(commonprefix([text, back]))
            given, got = text[place : place + _EXCERPT], back[place : place + _EXCERPT]
            raise DataError(
                f"{what} must be restored exactly by the model's tokenizer, but {given!r} at "
                f"character {place} decodes to {got!r}. Write it the way the tokenizer decodes it, "
                "or use a model with a byte-level tokenizer, which restores every text."
            )
        return tokens

    @cached_property
    def fixed(self) -> frozenset[int]:
        """All tokens that correction neither replaces nor writes."""
        return frozenset(v for v in range(self.tokenizer.vocab.size) if self.is_fixed(v))

    @cached_property
    def _end_text(self) -> str:
        return self.tokenizer.decode([self.tokenizer.end_id])

    def _decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens as inside a text: some decoders drop a leading space at its start."""
        text = self.tokenizer.decode([self.tokenizer.end_id, *tokens])
        if text.startswith(self._end_text):
            return text.removeprefix(self._end_text)
        return self.tokenizer.decode(tokens)

    def _end_of_characters(self, tokens: Sequence[int], texts: Sequence[str], start: int) -> int:
        """Return the end of the shortest run of partial characters that decodes completely.

        If no run of up to `_MAX_PARTS` does, as for U+FFFD in the text itself, return the end of
        all consecutive partial characters.
        """
        stop = start + 1
        while stop < len(texts) and _INVALID in texts[stop]:
            stop += 1
            if stop - start <= _MAX_PARTS and _INVALID not in self._decode(tokens[start:stop]):
                break
        return stop


class Window(NamedTuple):
    """A part of a text that fits into the context, and the tokens in it that it is used for."""

    start: int
    stop: int

    own_start: int
    own_stop: int
    """Every token of the text is owned by exactly one window."""

    @property
    def own(self) -> slice:
        """The window's own tokens, relative to its start."""
        return slice(self.own_start - self.start, self.own_stop - self.start)


def windows(num_tokens: int, context: int) -> list[Window]:
    """Return overlapping windows over a text: one if it fits, else several of `context` tokens.

    A window's own tokens have at least a quarter of the context on either side, except at the
    beginning and the end of the text.
    """
    if num_tokens <= context:
        return [Window(0, num_tokens, 0, num_tokens)]
    margin = context // 4
    stride = context - 2 * margin
    found: list[Window] = []
    own_start = 0
    while own_start < num_tokens:
        start = min(max(own_start - margin, 0), num_tokens - context)
        own_stop = own_start + stride if own_start else context - margin
        if start + context >= num_tokens:
            own_stop = num_tokens
        found.append(Window(start, start + context, own_start, own_stop))
        own_start = own_stop
    return found
