"""Special tokens: end-of-text, padding and mask, found by name or added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gidd.common.files import read_json
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

END = "<|endoftext|>"
PAD = "[PAD]"
MASK = "[MASK]"
UNKNOWN = "[UNK]"
COPY_TOKENIZER = "Copy the tokenizer again, or train one with `gidd data tokenizer`."
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
"""Files of Hugging Face with the names of the special tokens; the second has those of old files."""

_COMMON = {
    "eos_token": (END, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"),
    "pad_token": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "mask_token": ("<|mdm_mask|>", MASK, "<mask>", "<|mask|>"),
}
SPECIAL_FIELDS = tuple(_COMMON)
"""Fields of the special tokens in Hugging Face's files."""


class SpecialTokens(NamedTuple):
    """Special tokens of a tokenizer, and a note for each that it does not have itself."""

    end: str | None
    """None if the model has no row for it."""

    pad: str | None
    mask: str
    notes: tuple[str, ...]


def names_of(end: str | None, pad: str | None, mask: str | None) -> dict[str, str]:
    """Return the given special tokens by field."""
    tokens = zip(SPECIAL_FIELDS, (end, pad, mask), strict=True)
    return {field: token for field, token in tokens if token is not None}


def ensure_special_tokens(
    inner: Any, names: Mapping[str, str], model: Vocab | None
) -> SpecialTokens:
    """Find special tokens by the given names, otherwise by common names; add missing ones.

    Without a padding token, end-of-text is used. End-of-text is not added if the model, of which
    `model` is the vocabulary, has no row for it.
    """
    end, pad, mask = (_find(inner, field, names.get(field)) for field in SPECIAL_FIELDS)
    notes: list[str] = []
    if end is None and _has_row(inner, mask, model):
        end = END
        notes.append(_add(inner, "end-of-text", "eos_token", "end", END))
    elif end is None:
        notes.append(
            "the tokenizer has no end-of-text token and the model has no row for one: samples fill "
            "their whole length. If a token of the tokenizer ends a text, name it as eos_token in "
            f"{SETTINGS_FILES[0]}, or load the tokenizer with Tokenizer.load(NAME, end=TOKEN)."
        )
    if mask is None:
        notes.append(_add(inner, "mask", "mask_token", "mask", MASK))
    if pad == mask:  # padding is part of clean text, which has no masks
        pad = None
    return SpecialTokens(end, pad or end, mask or MASK, tuple(notes))


def _has_row(inner: Any, mask: str | None, model: Vocab | None) -> bool:
    """Whether the model has a row for the next token that is added."""
    if model is None:
        return True
    number = inner.get_vocab_size(with_added_tokens=True)
    return number < model.size and not (mask is None and number == model.mask_id)


def _add(inner: Any, kind: str, field: str, argument: str, token: str) -> str:
    inner.add_special_tokens([token])
    return (
        f"the tokenizer has no {kind} token; {token} was added as token "
        f"{inner.token_to_id(token):,}, which a model trained before with this tokenizer has not "
        f"learned. If another token is meant, name it as {field} in {SETTINGS_FILES[0]}, or load "
        f"the tokenizer with Tokenizer.load(NAME, {argument}=TOKEN)."
    )


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


def settings_file(tokens: Mapping[str, str | None]) -> dict[str, str]:
    """Return name and text of the file with the names of the special tokens, given by field."""
    settings = {field: token for field, token in sorted(tokens.items()) if token is not None}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {SETTINGS_FILES[0]: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}


def read_special_tokens(path: Path) -> dict[str, str]:
    """Return the special tokens that the settings beside a `tokenizer.json` name, by field."""
    found: dict[str, str] = {}
    for file in map(path.with_name, SETTINGS_FILES):
        if len(found) < len(SPECIAL_FIELDS) and file.is_file():
            settings = read_json(file, COPY_TOKENIZER, DataError)
            named = {field: _special_token(settings, field, file) for field in SPECIAL_FIELDS}
            found = {field: token for field, token in named.items() if token is not None} | found
    return found


def _special_token(settings: Mapping[str, Any], field: str, file: Path) -> str | None:
    """Return a special token, which Hugging Face writes as a string or as {"content": ...}."""
    token: Any = settings.get(field)
    content = token.get("content", token) if isinstance(token, dict) else token
    if content is None or isinstance(content, str):
        return content
    raise DataError(
        f"{file}: {field} must be a string or an object with a string as content, got "
        f"{shorten(token)}. {COPY_TOKENIZER}"
    )
