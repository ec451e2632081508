"""Packages that only some parts need: imported when used, never at import of `gidd`."""

from __future__ import annotations

import importlib
from types import ModuleType

from gidd.errors import ConfigError


def optional_package(name: str, extra: str) -> ModuleType:
    """A module that the extra `extra` installs, or an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name.partition('.')[0]} is needed for this and is not installed. "
            f'Run `pip install "gidd[{extra}]"`.'
        ) from error
