"""Tokenizer files, which are not trusted: local ones, and those of the Hugging Face hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gidd.common.files import explain_damage, parse_json, read_regular
from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.data.tokenizer_checks import is_ordinary, patterns, require_safe
from gidd.data.tokenizer_probe import require_fast, without_panic_messages
from gidd.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
"""Names of the special tokens, in Hugging Face's layout, so that `transformers` can load it."""

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


def download(name: str) -> Path:
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
        if not isinstance(hub.try_to_load_from_cache(name, TOKENIZER_FILE), str):
            # one request: hf_hub_download alone would retry for 25 s where there is no connection
            hub.get_hf_file_metadata(hub.hf_hub_url(name, TOKENIZER_FILE))
        return Path(hub.hf_hub_download(name, TOKENIZER_FILE))
    except Exception as error:  # errors of the hub and of the HTTP library below it
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"{name} is not a local file or folder, and {TOKENIZER_FILE} could not be downloaded "
            f"from the Hugging Face hub: {reason}. Check the path or name and the connection."
        ) from error


def special_token(settings: Mapping[str, Any], key: str, file: Path) -> str | None:
    """Return a special token, which Hugging Face writes as a string or as {"content": ...}."""
    token: Any = settings.get(f"{key}_token")
    content = token.get("content", token) if isinstance(token, dict) else token
    if content is None or isinstance(content, str):
        return content
    raise DataError(
        f"{file}: {key}_token must be a string or an object with a string as content, got "
        f"{shorten(token)}. {COPY_TOKENIZER}"
    )
