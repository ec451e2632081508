"""What correction must keep, and what it never writes."""

from __future__ import annotations

from collections.abc import Sequence

from gidd.errors import ConfigError
from gidd.pipeline.text import EncodedText, TokenTexts
from gidd.sampling import Ban, ban
from gidd.vocab import Vocab

Span = tuple[int, int]
"""Characters start .. stop - 1 of a text."""


def require_spans(spans: Sequence[Span], length: int) -> None:
    """Raise `ConfigError` if a span is not in a text of this length."""
    for start, stop in spans:
        if not 0 <= start <= stop <= length:
            raise ConfigError(
                f"a protected span must be (start, stop) with 0 <= start <= stop <= {length}, the "
                f"length of the text in characters, got ({start}, {stop}). Spans are Python "
                "slices: text[start:stop] is kept."
            )


def protected_tokens(given: EncodedText, spans: Sequence[Span]) -> list[bool]:
    """Return for each token whether it overlaps a protected span or is never corrected."""
    length = sum(map(len, given.texts))
    require_spans(spans, length)
    kept = bytearray(length)
    for start, stop in spans:
        kept[start:stop] = b"\1" * (stop - start)
    protected: list[bool] = []
    end = 0
    for text, is_fixed in zip(given.texts, given.fixed, strict=True):
        begin, end = end, end + len(text)
        protected.append(is_fixed or any(kept[begin:end]))
    return protected


def ban_unwritten_tokens(vocab: Vocab, token_texts: TokenTexts) -> Ban:
    """Return a processor for tokens that correction never writes: special and fixed ones."""
    return ban(vocab, token_texts.unwritten)
