"""Tokenizer files, local or on the Hugging Face hub; checked before a library reads them."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from gidd.common.files import explain_damage, parse_json, read_regular
from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.data.tokenizers.special import COPY_TOKENIZER, SETTINGS_FILES
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

TOKENIZER_FILE = "tokenizer.json"
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w|\w[\w.-]*\w)(/(\w|\w[\w.-]*\w))?", re.ASCII)
_log = logging.getLogger(__package__)

_MAX_TOKENS = 1 << 20
"""Tokens of a vocabulary; the largest of published tokenizers have 300,000."""

_MAX_TOKEN = 4096
"""Characters of a token; the longest of published tokenizers have a few hundred."""

_MAX_STRING = 1 << 22
"""Characters of other strings, such as a SentencePiece character map in base64."""

_MAX_ENTRIES = 4096
"""Entries of lists and objects outside the vocabulary."""

_MAX_BYTES = {"model.vocab": 1 << 22, "added_tokens": 1 << 20}
"""Bytes of all tokens that the library keeps in tries, which take up to 340 times as many."""


def read_tokenizer(path: Path, model: Vocab | None = None) -> Any:
    """Read a `tokenizer.json`, which is not trusted; `model` is the vocabulary of its model."""
    from tokenizers import Tokenizer as Inner

    name = str(path)
    with explain_damage(name, COPY_TOKENIZER, DataError):
        data = read_regular(path, DataError, TOKENIZER_BYTES)
        most = _MAX_TOKENS if model is None else model.size + 1  # a model may have no mask
        require_safe(parse_json(data, name), name, COPY_TOKENIZER, most)
        return Inner.from_buffer(data)


class _Unsafe(ValueError):
    """What is wrong with a tokenizer, as part of a sentence."""


def require_safe(definition: object, name: str, remedy: str, most: int = _MAX_TOKENS) -> None:
    """Raise `DataError` for a `tokenizer.json` that could exhaust memory; `name` is the file.

    `most` is the largest number of tokens.
    """
    try:
        fields = _mapping(definition, "it")
        model = _mapping(fields.get("model"), "model")
        added = fields.get("added_tokens") or []
        if not isinstance(added, list):
            _refuse("added_tokens", added, "a list")
        tokens = [_mapping(token, "added_tokens[...]") for token in cast("list[object]", added)]
        _check_vocabulary(model.get("vocab"), [token.get("id") for token in tokens], most)
        contents = [token.get("content") for token in tokens]
        _check_tokens(contents, "added_tokens", _MAX_BYTES["added_tokens"])
        _check_rest({"model": {**model, "vocab": None, "merges": None}})
        _check_rest({key: fields[key] for key in fields if key not in ("model", "added_tokens")})
    except _Unsafe as error:
        raise DataError(f"{name} is not a valid tokenizer: {error}. {remedy}") from None


def require_vocabulary(vocab: object, name: str, remedy: str) -> None:
    """Raise `DataError` for a vocabulary with ids or tokens that are out of range."""
    try:
        _check_vocabulary(_mapping(vocab, "it"), [], _MAX_TOKENS)
    except _Unsafe as error:
        raise DataError(f"{name} is not a valid vocabulary: {error}. {remedy}") from None


def _check_vocabulary(vocab: object, added: list[object], most: int) -> None:
    """Check tokens and ids: a list of Unigram's [token, score], or token -> id."""
    if isinstance(vocab, dict | list) and len(cast("list[object]", vocab)) > most:
        raise _Unsafe(f"model.vocab must have at most {most:,} tokens, got {len(vocab):,}")
    if isinstance(vocab, list):
        entries = cast("list[object]", vocab)
        tokens = [entry[0] if isinstance(entry, list) and entry else None for entry in entries]
        _check_tokens(tokens, "model.vocab", _MAX_BYTES["model.vocab"])
        ids: list[object] = list(range(len(tokens)))
    else:
        table = _mapping(vocab, "model.vocab")
        _check_tokens(table, "model.vocab")
        ids = list(table.values())
    what, largest = "ids of tokens", 2 * (len(ids) + len(added)) + 1023
    if wrong := set(map(type, [*ids, *added])) - {int}:
        raise _Unsafe(f"{what} must be integers, got {wrong.pop().__name__}")
    for number in cast("list[int]", [*ids, *added]):  # lists as long as the largest id are made
        if not 0 <= number <= largest:
            _refuse(what, number, f"in [0, {largest}], as there are {len(ids) + len(added):,}")
    if len(set(ids)) < len(ids):  # which of the tokens is decoded and saved would be random
        raise _Unsafe(f"{what} must be distinct, got {len(set(ids)):,} for {len(ids):,} tokens")


def _check_tokens(tokens: Collection[object], what: str, most: int | None = None) -> None:
    if wrong := set(map(type, tokens)) - {str}:
        raise _Unsafe(f"{what} must have strings as tokens, got {wrong.pop().__name__}")
    texts = cast("Collection[str]", tokens)
    if (longest := max(map(len, texts), default=0)) > _MAX_TOKEN:
        raise _Unsafe(
            f"{what} must have tokens of at most {_MAX_TOKEN:,} characters, not {longest:,}"
        )
    total = len("".join(texts).encode("utf-8", "replace"))
    if most is not None and total > most:
        raise _Unsafe(f"{what} must have at most {most:,} bytes of tokens, got {total:,}")


def _check_rest(value: object) -> None:
    """Check the sizes of everything but the vocabulary; the depth is limited already."""
    if isinstance(value, str) and len(value) > _MAX_STRING:
        raise _Unsafe(
            f"its strings must have at most {_MAX_STRING:,} characters, got {len(value):,}"
        )
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        entries = cast("Collection[object]", inside)
        if len(entries) > _MAX_ENTRIES:
            raise _Unsafe(
                f"its parts must have at most {_MAX_ENTRIES:,} entries, got {len(entries):,}"
            )
        for entry in entries:
            _check_rest(entry)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(what, value, "a JSON object")
    return cast("dict[str, Any]", value)


def _refuse(what: str, value: object, allowed: str) -> NoReturn:
    raise _Unsafe(f"{what} must be {allowed}, got {shorten(value)}")


def find_tokenizer(name: str | Path, revision: str | None = None) -> Path:
    """Return a local `tokenizer.json`, or download it; the files with its settings are beside it.

    Raises a `DataError` if it is neither here nor on the Hugging Face hub.
    """
    path = Path(name)
    if path.is_dir():
        path = path / TOKENIZER_FILE
    elif not path.is_file():
        return download(str(name), revision)
    if revision is not None:
        raise ConfigError(
            f"revision must be left out for local files, got {shorten(revision)} for {path}. "
            "Only repositories on the Hugging Face hub have revisions."
        )
    return path


def download(name: str, revision: str | None = None) -> Path:
    """Return `tokenizer.json` of a repository on the Hugging Face hub, downloaded or cached."""
    if not _HUB_NAME.fullmatch(name) or len(name) > 96 or name.endswith((".json", ".git")):
        raise DataError(
            f"{name} is neither a {TOKENIZER_FILE}, nor a folder with one, nor a name on the "
            f"Hugging Face hub. {COPY_TOKENIZER}"
        )
    if name != "gpt2":
        _log.warning("%s is not a file or folder here; trying the Hugging Face hub", name)
    hub = optional_package("huggingface_hub", "data")
    files = [TOKENIZER_FILE, *SETTINGS_FILES]
    try:
        folder = hub.snapshot_download(name, revision=revision, allow_patterns=files)
        if (path := Path(folder) / TOKENIZER_FILE).is_file():
            return path
        reason = "the repository has no such file"
    except Exception as error:  # errors of the hub and of the HTTP library below it
        reason = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"{name} is not a local file or folder, and {TOKENIZER_FILE} could not be downloaded from "
        f"the Hugging Face hub: {reason}. Check the path or name and the connection."
    )
