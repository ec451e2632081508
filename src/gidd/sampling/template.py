"""Text with blanks, such as "The capital of [MASK:3] is Paris", as tokens and blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gidd.errors import DataError
from gidd.sampling.request import Tokens

_BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
_MOST_BLANKS = 1_000_000


def parse_template(text: str, encode: Callable[[str], Sequence[int]]) -> Tokens:
    """Tokens of `text`, None for each token to fill: [MASK] is one blank, [MASK:n] n of them.

    `encode` turns text into token ids; it is called for each piece between blanks and should add no
    special tokens of its own.
    """
    tokens: list[int | None] = []
    end = 0
    for blank in _BLANK.finditer(text):
        tokens.extend(_encoded(text[end : blank.start()], encode))
        tokens.extend([None] * _number(blank))
        end = blank.end()
    tokens.extend(_encoded(text[end:], encode))
    if not tokens:
        raise DataError(
            "a template must have text or blanks, got an empty one. "
            'Write "[MASK:32]" for 32 tokens without a prompt.'
        )
    return tuple(tokens)


def _encoded(piece: str, encode: Callable[[str], Sequence[int]]) -> Sequence[int]:
    return encode(piece) if piece else ()


def _number(blank: re.Match[str]) -> int:
    written: str | None = blank.group(1)
    if written is None:
        return 1
    digits = len(str(_MOST_BLANKS))
    if not (written.isdecimal() and len(written) <= digits and 1 <= int(written) <= _MOST_BLANKS):
        raise DataError(
            f"a blank must be [MASK] or [MASK:n] with a whole number n of tokens from 1 to "
            f"{_MOST_BLANKS:,}, got {blank.group(0)[:40]}. Write [MASK:3] for three tokens."
        )
    return int(written)
