"""Packages that only data preparation needs: imported when used, never at import of `gidd`."""

from __future__ import annotations

import importlib
from types import ModuleType

from gidd.errors import ConfigError


def data_package(name: str) -> ModuleType:
    """A module of the extra `data`, or an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name.partition('.')[0]} is needed for this and is not installed. "
            'Run `pip install "gidd[data]"`.'
        ) from error
