"""Checks on a `tokenizer.json` from outside, before the `tokenizers` library builds anything of it.

They bound what the library and its users allocate: ids, which become lists of that length, lengths
of tokens, and how much longer a text gets in each part of the tokenizer. A part of unknown type is
refused, because the library guesses which part it may be.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.terminal import shorten
from gidd.errors import DataError

_TOKEN = 4096
"""Characters of a token; the longest of published tokenizers have a few hundred."""

_PATTERN = 1 << 16
"""Characters of a regular expression; the longest of published tokenizers have a few thousand."""

_CHARSMAP = 1 << 22
"""Characters of a SentencePiece character map in base64; the published ones have a few 100,000."""

_WORD = 1000
"""Characters of a word of WordPiece, which takes time quadratic in it. BERT's limit is 100."""

_PARTS = 64
"""Number of normalizers, of pre-tokenizers, ... in sequence."""

_TRIE_SHARE = 16
_MATCHER_SHARE = 64
"""Structures that take some 340 and 80 bytes per byte of a token get that part of the limit."""


class _Kind(NamedTuple):
    """One field of `tokenizer.json` that holds a part or a sequence of parts."""

    parts: str
    """Field of a Sequence that lists its parts."""

    growth: int
    """How many times longer all parts together may make a text."""

    types: Mapping[str, int]
    """How many times longer a part of that type makes a text; `_growth` has the others."""


# Unicode's forms and lower case count as 1: only few characters get longer (one of them 18 times),
# and no further if repeated.
_KINDS = {
    "normalizer": _Kind(
        "normalizers",
        64,
        {"BertNormalizer": 3, "ByteLevel": 4, "Lowercase": 1, "Nmt": 1, "Strip": 1}
        | dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD"), 1)
        | dict.fromkeys(("Precompiled", "Prepend", "Replace"), 0),
    ),
    "pre_tokenizer": _Kind(
        "pretokenizers",
        16,
        {"ByteLevel": 4, "Metaspace": 2, "BertPreTokenizer": 1, "CharDelimiterSplit": 1}
        | dict.fromkeys(("Digits", "FixedLength", "Punctuation", "Split", "UnicodeScripts"), 1)
        | dict.fromkeys(("Whitespace", "WhitespaceSplit"), 1),
    ),
    "post_processor": _Kind(
        "processors",
        1,
        dict.fromkeys(("BertProcessing", "ByteLevel", "RobertaProcessing"), 1)
        | {"TemplateProcessing": 0},
    ),
    "decoder": _Kind(
        "decoders",
        8,
        {"BPEDecoder": 2, "CTC": 2, "WordPiece": 2, "ByteFallback": 1, "ByteLevel": 1, "Fuse": 1}
        | {"Metaspace": 1, "Strip": 1, "Replace": 0},
    ),
}
_MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece", None)
"""None: files of old versions do not name it."""

_ORDINARY = {
    *("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing", "Digits"),
    *("Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"),
}
"""Parts whose time is linear whatever the file says."""


class _Unsafe(ValueError):
    """What is wrong with a tokenizer, as part of a sentence."""


def require_safe(definition: object, name: str, remedy: str) -> None:
    """Raise `DataError` for a `tokenizer.json` that could exhaust memory; `name` is the file."""
    try:
        fields = _mapping(definition, "it")
        _check_model(_mapping(fields.get("model"), "model"))
        _check_added(_list(fields.get("added_tokens") or [], "added_tokens"))
        _check_size(fields)
        for field in _KINDS:
            _check_parts(fields, field)
    except _Unsafe as error:
        raise DataError(f"{name} is not a valid tokenizer: {error}. {remedy}") from None


def require_vocabulary(vocab: Mapping[str, object], name: str, remedy: str) -> None:
    """Raise `DataError` for a vocabulary with ids or tokens that are out of range."""
    try:
        _check_tokens(vocab, "its tokens")
        _check_ids(vocab.values(), len(vocab), "its ids")
        _check_distinct(vocab, "its ids")
    except _Unsafe as error:
        raise DataError(f"{name} is not a valid vocabulary: {error}. {remedy}") from None


def is_ordinary(definition: Mapping[str, Any]) -> bool:
    """Whether it is a BPE without expressions and replacements of its own, as GPT-2's."""
    types = {part["type"] for field in _KINDS for part in _parts(definition.get(field), field)}
    model = definition["model"]
    has_prefix = bool(model.get("continuing_subword_prefix"))  # the library cuts it off unchecked
    return model.get("type") == "BPE" and not has_prefix and types <= _ORDINARY


def patterns(definition: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions and the strings that the parts of a tokenizer look for."""
    parts = (part for field in _KINDS for part in _parts(definition.get(field), field))
    return [_pattern(part) for part in parts if part["type"] in ("Replace", "Split")]


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type") not in _MODELS:
        _refuse("model.type", model.get("type"), "BPE, Unigram, WordLevel or WordPiece")
    for field in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field) is not None:
            _check_tokens([model[field]], f"model.{field}")
    word = model.get("max_input_chars_per_word", 0)
    if type(word) is not int or not 0 <= word <= _WORD:
        _refuse("model.max_input_chars_per_word", word, f"an integer in [0, {_WORD}]")
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        _check_tokens(tokens := [_unigram(entry) for entry in vocab], "model.vocab")
        _check_total(cast("list[str]", tokens), _TRIE_SHARE, "model.vocab")
    else:
        _check_tokens(_mapping(vocab, "model.vocab"), "model.vocab")


def _unigram(entry: object) -> object:
    return cast("list[object]", entry)[0] if isinstance(entry, list) and entry else None


def _check_added(tokens: Sequence[object]) -> None:
    contents = [_mapping(token, "added_tokens[...]").get("content") for token in tokens]
    _check_tokens(contents, "added_tokens[...].content")
    _check_total(cast("list[str]", contents), _MATCHER_SHARE, "added_tokens")


def _check_size(fields: Mapping[str, Any]) -> None:
    """Check the ids of the model and of the added tokens together."""
    vocab = fields["model"]["vocab"]
    added = [token.get("id") for token in fields.get("added_tokens") or []]
    ids: Collection[object] = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    _check_ids([*ids, *added], len(ids) + len(added), "the ids of model.vocab and added_tokens")
    if isinstance(vocab, dict):
        _check_distinct(cast("dict[str, object]", vocab), "the ids of model.vocab")


def _check_ids(ids: Collection[object], num_tokens: int, what: str) -> None:
    """Check that ids are dense, because lists as long as the largest id are made."""
    largest = 2 * num_tokens + 1023
    if wrong := set(map(type, ids)) - {int}:
        raise _Unsafe(f"{what} must be integers, got {wrong.pop().__name__}")
    if ids:
        numbers = cast("Collection[int]", ids)
        for number in (min(numbers), max(numbers)):
            if not 0 <= number <= largest:
                _refuse(what, number, f"in [0, {largest}], as there are {num_tokens:,} tokens")


def _check_distinct(vocab: Mapping[str, object], what: str) -> None:
    """Check that no id is shared: which of its tokens is decoded and saved would be random."""
    num_ids = len(set(vocab.values()))
    if num_ids < len(vocab):
        raise _Unsafe(f"{what} must be distinct, got {num_ids:,} ids for {len(vocab):,} tokens")


def _check_tokens(tokens: Collection[object], what: str) -> None:
    if wrong := set(map(type, tokens)) - {str}:
        raise _Unsafe(f"{what} must be strings, got {wrong.pop().__name__}")
    longest = max(map(len, cast("Collection[str]", tokens)), default=0)
    if longest > _TOKEN:
        raise _Unsafe(f"{what} must have at most {_TOKEN:,} characters each, got {longest:,}")


def _check_total(tokens: Collection[str], share: int, what: str) -> None:
    allowed = TOKENIZER_BYTES.value // share
    amount = len("".join(tokens).encode("utf-8", "replace"))
    if amount > allowed:
        raise _Unsafe(
            f"{what} must have at most {allowed:,} bytes of tokens, got {amount:,} (if you trust "
            f"it, raise the limit: {TOKENIZER_BYTES.variable}={amount * share})"
        )


def _check_parts(fields: Mapping[str, Any], field: str) -> None:
    kind = _KINDS[field]
    parts = list(_parts(fields.get(field), field))
    if len(parts) > _PARTS:
        raise _Unsafe(f"{field} must have at most {_PARTS} {kind.parts}, got {len(parts):,}")
    growth = math.prod(_growth(part, field) for part in parts)
    if growth > kind.growth:
        raise _Unsafe(
            f"{field} could make a text {shorten(growth)} times longer; at most {kind.growth} "
            "times is allowed"
        )


def _parts(value: object, field: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts in a field, also those in nested sequences."""
    if value is None:
        return
    kind = _KINDS[field]
    part = _mapping(value, field)
    name = part.get("type")
    if name == "Sequence":
        for inner in _list(part.get(kind.parts), f"{field}.{kind.parts}"):
            yield from _parts(inner, field)
    elif isinstance(name, str) and name in kind.types:
        yield part
    else:
        _refuse(f"{field}.type", name, f"Sequence, {', '.join(sorted(kind.types))}")


def _growth(part: Mapping[str, Any], field: str) -> int:
    """Return how many times longer a part can make a text, in characters."""
    match part["type"]:
        case "Replace":
            length = len(_string(part, "content"))
            # what matches the empty string, such as "a*", inserts between any two characters
            can_be_empty = not _pattern(part) or "Regex" in part["pattern"]
            return 1 + length if can_be_empty else max(1, length)
        case "Split":
            _pattern(part)
            return 1
        case "Prepend":  # to each piece of the text between added tokens
            return 1 + len(_string(part, "prepend"))
        case "Precompiled":
            return _longest_replacement(_string(part, "precompiled_charsmap", _CHARSMAP))
        case "Strip" if part.get("stop", 0) not in (0, 1):  # the library fails on shorter tokens
            _refuse("stop", part["stop"], "0 or 1")
        case "TemplateProcessing":
            pieces = _list(part.get("single"), "single")
            return max(1, sum("Sequence" in _mapping(piece, "single[...]") for piece in pieces))
        case name:
            return _KINDS[field].types[name]


def _pattern(part: Mapping[str, Any]) -> str:
    """Return the regular expression or the string that a Replace or Split looks for."""
    pattern = _mapping(part.get("pattern"), "pattern")
    return _string(pattern, "Regex" if "Regex" in pattern else "String")


def _string(part: Mapping[str, Any], field: str, longest: int = _PATTERN) -> str:
    value = part.get(field)
    if not isinstance(value, str):
        _refuse(field, value, "a string")
    if len(value) > longest:
        raise _Unsafe(f"{field} must have at most {longest:,} characters, got {len(value):,}")
    return value


def _longest_replacement(charsmap: str) -> int:
    """Return the characters of the longest string of a SentencePiece character map.

    Its bytes: the size of a trie (4 bytes, little-endian), the trie, strings that end with NUL.
    """
    try:
        data = base64.b64decode(charsmap, validate=True)
    except ValueError as error:
        raise _Unsafe(f"precompiled_charsmap must be base64, got {error}") from error
    start = 4 + int.from_bytes(data[:4], "little") // 4 * 4
    if start > len(data):
        raise _Unsafe(f"precompiled_charsmap must have the {start:,} bytes it claims to have")
    return max(1, *(len(text.decode(errors="replace")) for text in data[start:].split(b"\0")))


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(what, value, "a JSON object")
    return cast("dict[str, Any]", value)


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        _refuse(what, value, "a list")
    return cast("list[object]", value)


def _refuse(what: str, value: object, allowed: str) -> NoReturn:
    raise _Unsafe(f"{what} must be {allowed}, got {shorten(value)}")
