"""Long documents in pieces, because encoding takes 110 to 300 times the size of a text in memory.

GPT-2's expression splits a text into words, each with the space before it, and byte-level BPE
encodes one word at a time. So a text may be cut before any space or line break that follows a
letter or a digit: the tokens of the pieces, joined, are those of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gidd.common.limits import PIECE_CHARACTERS
from gidd.errors import DataError


def can_cut(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer (its JSON) encodes a text word by word, so that it can be cut."""
    splitter, model = tokenizer["pre_tokenizer"] or {}, tokenizer["model"]
    return (
        splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True) is True
        and splitter.get("add_prefix_space") is False
        and tokenizer["normalizer"] is None
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(token["special"] for token in tokenizer["added_tokens"])
    )


def cut(text: str, longest: int) -> Iterator[str]:
    """Yield pieces of at most `longest` characters, and what cannot be cut as it is."""
    start = 0
    while len(text) - start > longest:
        stop = _last_cut(text, start + 1, start + longest) or _first_cut(text, start + longest)
        yield text[start:stop]
        start = stop
    if start < len(text) or not text:
        yield text[start:]


def require_piece_size(num_characters: int, place: str, can_be_cut: bool) -> None:
    """Raise if too long a text would have to be encoded at once."""
    if num_characters > PIECE_CHARACTERS.value:
        where = "between spaces or line breaks that follow a letter or digit" if can_be_cut else ""
        reason = "" if can_be_cut else " with this tokenizer, which must see a whole document"
        raise DataError(
            f"{place} must have at most {PIECE_CHARACTERS.value:,} characters {where}".rstrip()
            + f"{reason}, got {num_characters:,}. Split it into several documents, or raise the "
            f"limit: {PIECE_CHARACTERS.variable}={num_characters} takes up to "
            f"{num_characters * 300 / 2**30:.1f} GiB of memory."
        )


def _last_cut(text: str, start: int, stop: int) -> int:
    """Return the last place to cut in [start, stop], or 0."""
    while (found := max(text.rfind(" ", start, stop + 1), text.rfind("\n", start, stop + 1))) > 0:
        if text[found - 1].isalnum():
            return found
        stop = found - 1
    return 0


def _first_cut(text: str, start: int) -> int:
    """Return the first place to cut after `start`, or the end of the text."""
    for place in range(start + 1, len(text)):
        if text[place] in " \n" and text[place - 1].isalnum():
            return place
    return len(text)
