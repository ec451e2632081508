"""Special tokens of a tokenizer: end-of-text, padding and mask, found by name or added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gidd.common.terminal import shorten
from gidd.errors import ConfigError

END = "<|endoftext|>"
PAD = "[PAD]"
MASK = "[MASK]"
UNKNOWN = "[UNK]"
_COMMON = {
    "eos_token": (END, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"),
    "pad_token": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "mask_token": ("<|mdm_mask|>", MASK, "<mask>", "<|mask|>"),
}
SPECIAL_FIELDS = tuple(_COMMON)
"""Fields of the special tokens in Hugging Face's files."""


class SpecialTokens(NamedTuple):
    """Special tokens of a tokenizer, and a note for each that had to be added."""

    end: str
    pad: str
    mask: str
    notes: tuple[str, ...]


def names_of(end: str | None, pad: str | None, mask: str | None) -> dict[str, str]:
    """Return the given special tokens by field."""
    tokens = zip(SPECIAL_FIELDS, (end, pad, mask), strict=True)
    return {field: token for field, token in tokens if token is not None}


def ensure_special_tokens(inner: Any, names: Mapping[str, str]) -> SpecialTokens:
    """Find special tokens by the given names, otherwise by common ones; add those that are missing.

    Without a padding token, end-of-text is used.
    """
    end, pad, mask = (_find(inner, field, names.get(field)) for field in SPECIAL_FIELDS)
    missing: list[tuple[str, str, str]] = []
    if end is None:
        missing.append(("end-of-text", "end", END))
    if mask is None:
        missing.append(("mask", "mask", MASK))
    inner.add_special_tokens([token for _, _, token in missing])
    notes = tuple(
        f"the tokenizer has no {kind} token; {token} was added as token "
        f"{inner.token_to_id(token):,}, which a model trained before with this tokenizer has not "
        "learned. If another token is meant, load the tokenizer with "
        f"Tokenizer.load(NAME, {argument}=TOKEN)."
        for kind, argument, token in missing
    )
    return SpecialTokens(end or END, pad or end or END, mask or MASK, notes)


def _find(inner: Any, field: str, name: str | None) -> str | None:
    """Return the token of that name, which must exist, or the first of the common ones."""
    if name is None:
        known = (token for token in _COMMON[field] if inner.token_to_id(token) is not None)
        return next(known, None)
    if inner.token_to_id(name) is None:
        raise ConfigError(
            f"{field} must be a token of the tokenizer, got {shorten(name)}. "
            "Add it to the tokenizer first, or choose another with end=, pad= or mask=TOKEN."
        )
    return name
