"""Which token stands for which piece of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final
from unicodedata import category

from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LAYOUT = frozenset({"Cc", "Zl", "Zp"})
"""Categories of control characters and of the breaks of lines and paragraphs."""
_SHOWN = 20
_MOST_PIECES = 16
"""Broken pieces that are tried together: a few characters, so that long runs take linear time."""


@final
class TokenTexts:
    """Cuts text into the pieces of its tokens.

    Byte-level tokens may be parts of a character. Together such tokens have a text, which is given
    to the first of them; the others get "".
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """One piece for each token; joined, they are the text."""
        token_texts = [self.of(token) for token in tokens]
        start = 0
        while start < len(token_texts):
            stop = start + 1
            if _BROKEN in token_texts[start]:
                stop = self._mended(tokens, token_texts, start)
                text = self._decode(tokens[start:stop])
                token_texts[start:stop] = [text, *[""] * (stop - start - 1)]
            start = stop
        return token_texts

    def of(self, token: int) -> str:
        """The text of one token; it holds U+FFFD for a part of a character."""
        if token not in self._known:
            self._known[token] = self._decode([token])
        return self._known[token]

    def is_fixed(self, token: int) -> bool:
        """Whether a token is not for correction: line breaks, tabs, parts of characters."""
        return any(c == _BROKEN or category(c) in _LAYOUT for c in self.of(token))

    def encode(self, text: str, what: str) -> list[int]:
        """The tokens of a text that they give back exactly; any other text is refused.

        Args:
            text: The text.
            what: What it is, for messages.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{what} must be text, got {text[error.start]!r} at character {error.start}, which "
                "is half a character or a byte that is no UTF-8. Leave it out."
            ) from error
        tokens = self.tokenizer.encode(text)
        back = "".join(self(tokens))
        if back != text:
            pairs = enumerate(zip(text, back, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(back)))
            given, got = text[place : place + _SHOWN], back[place : place + _SHOWN]
            raise DataError(
                f"{what} must come back from the model's tokenizer as it was, but {given!r} at "
                f"character {place} comes back as {got!r}. Write it as the tokenizer does, or use "
                "a model with a byte-level tokenizer, which is exact on every text."
            )
        return tokens

    @cached_property
    def fixed(self) -> frozenset[int]:
        """All tokens that correction neither replaces nor writes."""
        return frozenset(v for v in range(self.tokenizer.vocab.size) if self.is_fixed(v))

    @cached_property
    def _before(self) -> str:
        return self.tokenizer.decode([self.tokenizer.end_id])

    def _decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens in the middle of a text: some decoders drop a leading space."""
        text = self.tokenizer.decode([self.tokenizer.end_id, *tokens])
        if text.startswith(self._before):
            return text.removeprefix(self._before)
        return self.tokenizer.decode(tokens)

    def _mended(self, tokens: Sequence[int], token_texts: Sequence[str], start: int) -> int:
        """The end of the fewest broken pieces from `start` on that are whole characters together.

        If few of them are not, which U+FFFD itself in the text never is, the end of all of them.
        """
        stop = start + 1
        while stop < len(token_texts) and _BROKEN in token_texts[stop]:
            stop += 1
            if stop - start <= _MOST_PIECES and _BROKEN not in self._decode(tokens[start:stop]):
                break
        return stop
