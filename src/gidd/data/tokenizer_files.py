"""Tokenizer files, which are not trusted: local ones, and those of the Hugging Face hub."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from gidd.common.files import explain_damage, parse_json, read_json, read_regular
from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.data.special_tokens import SPECIAL_FIELDS
from gidd.data.tokenizer_checks import is_ordinary, patterns, require_safe
from gidd.data.tokenizer_probe import require_fast, without_panic_messages
from gidd.errors import ConfigError, DataError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
"""Names of the special tokens, in Hugging Face's layout, so that `transformers` can load it."""

_TOKENS_MAP = "special_tokens_map.json"
"""Names of special tokens that older files of Hugging Face have here only."""

COPY_TOKENIZER = "Copy the tokenizer again, or train one with `gidd data tokenizer`."
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w|\w[\w.-]*\w)(/(\w|\w[\w.-]*\w))?", re.ASCII)
_log = logging.getLogger(__name__)


def read_tokenizer(path: Path) -> Any:
    """Read a `tokenizer.json`, which is not trusted."""
    from tokenizers import Tokenizer as Inner

    name = str(path)
    with explain_damage(name, COPY_TOKENIZER, DataError):
        data = read_regular(path, DataError, TOKENIZER_BYTES)
        definition: Any = parse_json(data, name)
        require_safe(definition, name, COPY_TOKENIZER)
        if is_ordinary(definition):
            return Inner.from_buffer(data)
        with without_panic_messages():
            inner = Inner.from_buffer(data)
            require_fast(inner, patterns(definition), name, COPY_TOKENIZER)
            return inner


def settings_file(end: str, mask: str, pad: str) -> dict[str, str]:
    """Return name and text of the file with the names of the special tokens."""
    settings = {"eos_token": end, "mask_token": mask, "pad_token": pad}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {TOKENIZER_SETTINGS: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}


def find_tokenizer(name: str | Path, revision: str | None = None) -> Path:
    """Return a local `tokenizer.json`, or download it; the files with its settings are beside it.

    Raises a `DataError` if it is neither here nor on the Hugging Face hub.
    """
    path = Path(name)
    if path.is_dir():
        path = path / TOKENIZER_FILE
    elif not path.is_file():
        path = download(str(name), revision)
        for file in (TOKENIZER_SETTINGS, _TOKENS_MAP):
            _download_settings(str(name), revision, path.with_name(file))
        return path
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
    try:
        return _fetch(hub, name, TOKENIZER_FILE, revision)
    except Exception as error:  # errors of the hub and of the HTTP library below it
        raise DataError(
            f"{name} is not a local file or folder, and {TOKENIZER_FILE} could not be downloaded "
            f"from the Hugging Face hub: {_reason(error)}. Check the path or name and the "
            "connection."
        ) from error


def _download_settings(name: str, revision: str | None, path: Path) -> None:
    """Download a file to `path` in the cache, unless the repository has none."""
    hub = optional_package("huggingface_hub", "data")
    cached = hub.try_to_load_from_cache(name, path.name, revision=revision)
    is_known_absent = cached is not None and not isinstance(cached, str)
    if path.is_file() or is_known_absent:
        return
    try:
        _fetch(hub, name, path.name, revision)
    except _absent():
        pass
    except Exception as error:
        _log.warning(
            "warning: %s of %s could not be downloaded from the Hugging Face hub: %s. Special "
            "tokens that it names are looked up by common names instead.",
            *(path.name, name, _reason(error)),
        )


def _fetch(hub: ModuleType, name: str, file: str, revision: str | None) -> Path:
    """Return a file of a repository on the hub, downloaded or cached."""
    if not isinstance(hub.try_to_load_from_cache(name, file, revision=revision), str):
        # one request: hf_hub_download alone would retry for 25 s where there is no connection; but
        # only hf_hub_download records in the cache that the repository does not have the file
        with suppress(_absent()):
            hub.get_hf_file_metadata(hub.hf_hub_url(name, file, revision=revision))
    return Path(hub.hf_hub_download(name, file, revision=revision))


def _absent() -> type[Exception]:
    """Return the error for a file that a repository on the hub does not have."""
    return optional_package("huggingface_hub.errors", "data").RemoteEntryNotFoundError


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def read_special_tokens(path: Path) -> dict[str, str]:
    """Return the special tokens that the settings beside a `tokenizer.json` name, by field."""
    found: dict[str, str] = {}
    for file in (path.with_name(TOKENIZER_SETTINGS), path.with_name(_TOKENS_MAP)):
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
