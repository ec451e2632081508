"""Packages that only some parts need: imported when used, never at import of `gidd`."""

from __future__ import annotations

import importlib
from types import ModuleType

from gidd.errors import ConfigError


def hugging_face(package: str) -> ModuleType:
    """`transformers` or `huggingface_hub`, or an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{package} is needed for this and is not installed. Run `pip install "gidd[hf]"`.'
        ) from error
