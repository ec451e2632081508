"""Files of a tokenizer, local or on the Hugging Face hub, checked before a library reads them.

Special tokens (end-of-text, padding, mask) are named by the files, found by name, or added.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from gidd.common.files import (
    RECORD_BYTES,
    TOKENIZER_BYTES,
    explain_damage,
    parse_json,
    read_json,
    read_regular,
)
from gidd.common.local_models import local_model
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
"""Files of Hugging Face with the names of the special tokens; old models have the second."""

TEMPLATE_FILE = "chat_template.jinja"
"""File of Hugging Face with the chat template, which old models have in their settings."""

END, PAD, MASK, UNKNOWN = "<|endoftext|>", "[PAD]", "[MASK]", "[UNK]"
COPY_TOKENIZER = "Copy the tokenizer again, or train one with `gidd data tokenizer`."
SPECIAL_FIELDS = {"end": "eos_token", "pad": "pad_token", "mask": "mask_token"}
"""Special tokens, and their fields in the files of Hugging Face."""

_COMMON = {
    "end": (END, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"),
    "pad": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "mask": ("<|mdm_mask|>", MASK, "<mask>", "<|mask|>"),
}
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w|\w[\w.-]*\w)(/(\w|\w[\w.-]*\w))?", re.ASCII)
_log = logging.getLogger(__package__)

# the largest of published tokenizers have 300,000 tokens, of at most a few hundred characters
_MAX_TOKENS, _MAX_TOKEN = 1 << 20, 4096
_MAX_STRING, _MAX_ENTRIES = 1 << 22, 4096
"""Characters of strings and entries of lists outside the vocabulary."""

_MAX_UNIGRAM_BYTES, _MAX_ADDED_BYTES = 1 << 22, 1 << 20
"""Bytes of all tokens that the library keeps in tries, which take up to 340 times as many."""


def read_tokenizer(path: Path, model: Vocab | None = None) -> Any:
    """Read a `tokenizer.json`, which is not trusted; `model` is the vocabulary of its model."""
    from tokenizers import Tokenizer as Inner

    with explain_damage(str(path), COPY_TOKENIZER, DataError):
        data = read_regular(path, DataError, TOKENIZER_BYTES)
        most = _MAX_TOKENS if model is None else model.size + 1  # a model may have no mask
        _check_definition(parse_json(data, str(path)), most)
        return Inner.from_buffer(data)


def _check_definition(definition: Any, most: int) -> None:
    """Raise `ValueError` for what could exhaust memory."""
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise ValueError("it must be a JSON object with an object `model`")
    fields = cast("dict[str, Any]", definition)
    added: Any = fields.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(t, dict) for t in added):
        raise ValueError(f"added_tokens must be a list of objects, got {shorten(added)}")
    tokens = cast("list[dict[str, Any]]", added)
    check_vocabulary(fields["model"].get("vocab"), [token.get("id") for token in tokens], most)
    _check_tokens([t.get("content") for t in tokens], "added_tokens", _MAX_ADDED_BYTES)
    rest = {**fields, "added_tokens": None}
    _check_rest(rest | {"model": {**fields["model"], "vocab": None, "merges": None}})


def check_vocabulary(vocab: object, added: Iterable[object] = (), most: int = _MAX_TOKENS) -> None:
    """Raise `ValueError` for invalid tokens or ids: token -> id, or Unigram's [token, score]."""
    if not isinstance(vocab, dict | list):
        raise ValueError(f"model.vocab must be an object or a list, got {shorten(vocab)}")
    size = len(cast("list[Any]", vocab))
    if size > most:
        raise ValueError(f"model.vocab must have at most {most:,} tokens, got {size:,}")
    if isinstance(vocab, list):
        pairs = [entry or [None] for entry in vocab if isinstance(entry, list)]
        if len(pairs) < size:
            raise ValueError("model.vocab must be a list of lists [token, score]")
        _check_tokens([pair[0] for pair in pairs], "model.vocab", _MAX_UNIGRAM_BYTES)
        ids: list[Any] = list(range(size))
    else:
        _check_tokens(cast("dict[object, Any]", vocab), "model.vocab")
        ids = list(cast("dict[object, Any]", vocab).values())
    every: list[Any] = [*ids, *added]
    largest = 2 * len(every) + 1023  # lists as long as the largest id are made
    if wrong := [index for index in every if type(index) is not int or not 0 <= index <= largest]:
        raise ValueError(f"ids of tokens must be integers up to {largest}, got {shorten(wrong[0])}")
    if (distinct := len(set(ids))) < size:  # which token is decoded and saved would be random
        raise ValueError(f"ids of tokens must be distinct, got {distinct:,} for {size:,} tokens")


def _check_tokens(tokens: Collection[object], name: str, most: int | None = None) -> None:
    if wrong := set(map(type, tokens)) - {str}:
        raise ValueError(f"{name} must have strings as tokens, got {wrong.pop().__name__}")
    texts = cast("Collection[str]", tokens)
    if (longest := max(map(len, texts), default=0)) > _MAX_TOKEN:
        raise ValueError(f"{name} must have at most {_MAX_TOKEN:,} characters, got {longest:,}")
    total = len("".join(texts).encode("utf-8", "replace"))
    if most is not None and total > most:
        raise ValueError(f"{name} must have at most {most:,} bytes of tokens, got {total:,}")


def _check_rest(value: object) -> None:
    """Check the sizes of everything but the vocabulary; the depth is limited already."""
    if isinstance(value, str | dict | list):
        most = _MAX_STRING if isinstance(value, str) else _MAX_ENTRIES
        if (size := len(cast("list[object]", value))) > most:
            raise ValueError(f"strings and lists must be at most {most:,} long, got {size:,}")
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        for entry in cast("Collection[object]", inside):
            _check_rest(entry)


def find_tokenizer(name: str | Path, revision: str | None = None, **settings: Any) -> Path:
    """Return a local `tokenizer.json`, or download it; the files with its settings are beside it.

    `name` is a file, a folder, or the name of an installed model or of a repository on the hub, for
    which `settings` are token and cache_dir.
    """
    path = Path(name)
    if not path.is_file():
        if (folder := local_model(name)) is None:
            return download(str(name), revision, **settings)
        path = folder / TOKENIZER_FILE
    if revision is not None:
        raise ConfigError(
            f"revision must be left out for local files, got {shorten(revision)} for {path}."
        )
    return path


def download(name: str, revision: str | None = None, **settings: Any) -> Path:
    """Return `tokenizer.json` of a repository on the Hugging Face hub, downloaded or cached."""
    if not _HUB_NAME.fullmatch(name) or len(name) > 96 or name.endswith((".json", ".git")):
        raise DataError(
            f"{name} is neither a {TOKENIZER_FILE}, nor a folder with one, nor a name on the "
            f"Hugging Face hub. {COPY_TOKENIZER}"
        )
    if name != "gpt2":
        _log.warning("%s is not a file or folder here; trying the Hugging Face hub", name)
    hub = optional_package("huggingface_hub", "data")
    files = [TOKENIZER_FILE, *SETTINGS_FILES, TEMPLATE_FILE]
    try:
        folder = hub.snapshot_download(name, revision=revision, allow_patterns=files, **settings)
        if (path := Path(folder) / TOKENIZER_FILE).is_file():
            return path
        reason = "the repository has no such file"
    except Exception as error:  # errors of the hub and of the HTTP library below it
        reason = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"{name} is not a local file or folder, and {TOKENIZER_FILE} could not be downloaded from "
        f"the Hugging Face hub: {reason}. Check the path or name and the connection."
    )


def read_settings(path: Path) -> tuple[dict[str, str], str | None]:
    """Return what the files beside a `tokenizer.json` say: special tokens and chat template."""
    tokens: dict[str, str] = {}
    template = None
    for file in filter(Path.is_file, map(path.with_name, SETTINGS_FILES)):
        settings = read_json(file, COPY_TOKENIZER, DataError)
        for field, token in settings.items():
            content = token.get("content", token) if isinstance(token, dict) else token
            if field.endswith("_token") and isinstance(content, str):
                tokens.setdefault(field, content)
            elif field in SPECIAL_FIELDS.values() and content is not None:
                raise DataError(
                    f"{file}: {field} must be a string or an object with a string as content, got "
                    f"{shorten(token)}. {COPY_TOKENIZER}"
                )
        template = template or _default_template(settings.get("chat_template"), file)
    if (file := path.with_name(TEMPLATE_FILE)).is_file():
        template = read_regular(file, DataError, RECORD_BYTES).decode(errors="replace")
    return tokens, template


def _default_template(template: Any, file: Path) -> str | None:
    """Return a template, or of several with names the one named default."""
    if isinstance(template, list):
        named = [t for t in cast("list[Any]", template) if isinstance(t, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise DataError(
            f"{file}: chat_template must be a string, got {shorten(template)}. {COPY_TOKENIZER}"
        )
    return template


def ensure_special_tokens(
    inner: Any, names: Mapping[str, str], model: Vocab | None
) -> tuple[str | None, str | None, str, tuple[str, ...]]:
    """Find special tokens by the given names, otherwise by common names; add missing ones.

    Return end-of-text (None if `model` has no row for it), padding, mask, and a note for each
    missing one. Without a padding token, end-of-text is used.
    """
    end, pad, mask = (_find(inner, name, names.get(name)) for name in SPECIAL_FIELDS)
    notes: list[str] = []
    size = inner.get_vocab_size(with_added_tokens=True)
    if end is None and (
        model is None or (size < model.size and (mask is not None or size != model.mask_id))
    ):
        end = END
        notes.append(_add(inner, "end-of-text", "end", END))
    elif end is None:
        notes.append(
            "the tokenizer has no end-of-text token and the model has no row for one: samples fill "
            f"their whole length. If one ends a text, name it as eos_token in {SETTINGS_FILES[0]}."
        )
    if mask is None:
        notes.append(_add(inner, "mask", "mask", MASK))
    if pad == mask:  # padding is part of clean text, which has no masks
        pad = None
    return end, pad or end, mask or MASK, tuple(notes)


def _add(inner: Any, role: str, name: str, token: str) -> str:
    inner.add_special_tokens([token])
    return (
        f"the tokenizer has no {role} token; {token} was added as token "
        f"{inner.token_to_id(token):,}, which a model trained before with this tokenizer has not "
        f"learned. If another token is meant, name it as {SPECIAL_FIELDS[name]} in "
        f"{SETTINGS_FILES[0]}, or load the tokenizer with Tokenizer.load(NAME, {name}=TOKEN)."
    )


def _find(inner: Any, name: str, token: str | None) -> str | None:
    """Return the given token, which must exist, or the first of the common ones."""
    if token is None:
        return next((t for t in _COMMON[name] if inner.token_to_id(t) is not None), None)
    if inner.token_to_id(token) is None:
        raise ConfigError(
            f"{SPECIAL_FIELDS[name]} must be a token of the tokenizer, got {shorten(token)}. "
            f"Add it to the tokenizer first, or choose another with {name}=TOKEN."
        )
    return token
