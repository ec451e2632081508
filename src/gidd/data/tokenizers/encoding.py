"""How text can be encoded: by a table, if tokens are bytes or characters; long texts in pieces.

Tokenizers of single bytes or characters encode by a table: 20 times as fast as BPE without merges,
in a tenth of the memory. With an unknown token, characters outside the vocabulary are encoded as
similar ones in it, if there are any (`gidd.data.similar_characters`); other libraries encode all of
them as the unknown token.

Long documents are encoded in pieces, because encoding takes 110 to 300 times the size of a text in
memory. GPT-2's expression splits a text into words, each with the space before it, and byte-level
BPE encodes one word at a time. So a text may be cut before any space or line break that follows a
letter or a digit: the joined tokens of the pieces are the tokens of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gidd.data.similar_characters import SimilarCharacters

NUM_BYTES = 256
_EMPTY = (None, "")

Encode = Callable[[str], list[int]]


def is_character_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer (its JSON) encodes every character alone, as one token or as none."""
    vocab, unknown = tokenizer["model"]["vocab"], tokenizer["model"].get("unk_token")
    return (
        _has_no_merges(tokenizer)
        and not tokenizer["model"].get("fuse_unk")
        and (unknown is None or unknown in vocab)
        and all(len(token) == 1 or token == unknown for token in vocab)
        and tokenizer["pre_tokenizer"] is None
        and (tokenizer["decoder"] or {}).get("type") == "Fuse"
    )


def is_bytes(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer (its JSON) encodes every byte as one token."""
    splitter = tokenizer["pre_tokenizer"] or {}
    return (
        _has_no_merges(tokenizer)
        and set(tokenizer["model"]["vocab"]) == set(byte_characters())
        and splitter.get("type") == "ByteLevel"
        and splitter.get("add_prefix_space") is False
    )


def unit_encoder(inner: Any) -> Encode | None:
    """Return a function that encodes text, or None if tokens are not bytes or characters."""
    is_small = inner.get_vocab_size(with_added_tokens=False) == NUM_BYTES
    if not is_small and type(inner.decoder).__name__ != "Fuse":
        return None  # without its JSON, which takes 0.2 s for GPT-2
    definition = json.loads(inner.to_str())
    if definition["model"]["type"] != "BPE":
        return None
    model: Mapping[str, Any] = definition["model"]
    if is_bytes(definition):
        return _byte_encoder(model["vocab"])
    return _character_encoder(model) if is_character_level(definition) else None


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary, as in GPT-2."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in printable else next(others) for byte in range(NUM_BYTES)]


def _has_no_merges(tokenizer: Mapping[str, Any]) -> bool:
    model = tokenizer["model"]
    return (
        model["type"] == "BPE"
        and not model["merges"]
        and not model.get("ignore_merges")  # then the name of a token may be encoded as that token
        and not model.get("byte_fallback")
        and model.get("continuing_subword_prefix") in _EMPTY
        and model.get("end_of_word_suffix") in _EMPTY
        and tokenizer["normalizer"] is None
        and all(token["special"] for token in tokenizer["added_tokens"])
    )


def _byte_encoder(vocab: Mapping[str, int]) -> Encode:
    table = np.array([vocab[character] for character in byte_characters()])
    return lambda text: table[np.frombuffer(text.encode(), dtype=np.uint8)].tolist()


def _character_encoder(model: Mapping[str, Any]) -> Encode:
    vocab: Mapping[str, int] = model["vocab"]
    unknown = vocab.get(model.get("unk_token") or "", -1)
    known = {ord(token): number for token, number in vocab.items() if len(token) == 1}
    similar = SimilarCharacters(map(chr, known))
    last = max(known, default=0) + 1
    table = np.full(last + 1, unknown)
    table[list(known)] = list(known.values())

    def lookup(text: str) -> NDArray[np.int64]:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return table[np.minimum(codes, last)]

    def encode(text: str) -> list[int]:
        numbers = lookup(text)
        if unknown < 0:
            return numbers[numbers >= 0].tolist()
        if (numbers == unknown).any():
            numbers = lookup(text.translate(similar))
        return numbers.tolist()

    return encode


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
    """Yield pieces of at most `longest` characters, longer where there is no place to cut."""
    start = 0
    while len(text) - start > longest:
        stop = _last_cut(text, start + 1, start + longest) or _first_cut(text, start + longest)
        yield text[start:stop]
        start = stop
    if start < len(text) or not text:
        yield text[start:]


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
