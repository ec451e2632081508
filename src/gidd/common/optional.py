"""Optional dependencies: imported when used, never by `import gidd`."""

from __future__ import annotations

import importlib
from types import ModuleType

from gidd.errors import ConfigError


def optional_package(name: str, extra: str) -> ModuleType:
    """Import a module of the extra `extra`, or raise an error with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name.partition('.')[0]} is required for this and is not installed. "
            f'Run `pip install "gidd[{extra}]"`.'
        ) from error
