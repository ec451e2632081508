"""Templates: text with blanks, such as "The capital of [MASK:3] is Paris"."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gidd.errors import DataError
from gidd.sampling.request import Tokens

_BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
_MAX_BLANKS = 1_000_000


def parse_template(text: str, encode: Callable[[str], Sequence[int]]) -> Tokens:
    """Parse `text` to tokens, with None for blanks: [MASK] is one blank, [MASK:n] is n blanks.

    `encode` maps text to token ids. It is called for each piece between blanks and should not add
    special tokens.
    """
    tokens: list[int | None] = []
    for i, piece in enumerate(_BLANK.split(text)):  # text and numbers of blanks in turn
        if i % 2:
            tokens.extend([None] * _num_blanks(piece))
        elif piece:
            tokens.extend(encode(piece))
    if not tokens:
        raise DataError(
            "a template must have text or blanks, got an empty string. "
            'Write "[MASK:32]" for 32 tokens without a prompt.'
        )
    return tuple(tokens)


def _num_blanks(number: str | None) -> int:
    if number is None:  # [MASK]
        return 1
    digits = len(str(_MAX_BLANKS))
    if not (number.isdecimal() and len(number) <= digits and 1 <= int(number) <= _MAX_BLANKS):
        raise DataError(
            f"a blank must be [MASK] or [MASK:n] with n an integer number of tokens from 1 to "
            f"{_MAX_BLANKS:,}, got {f'[MASK:{number}]'[:40]}. Write [MASK:3] for three tokens."
        )
    return int(number)
