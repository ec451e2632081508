"""Parse the arguments of a command; messages about mistakes are safe to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import tyro

from gidd.common.terminal import printable
from gidd.common.urls import redacted_argument

_T = TypeVar("_T")


def parse(command: Callable[..., _T], arguments: Sequence[str], **settings: Any) -> _T:
    """Call a function, or build a dataclass, with the options in `arguments`.

    tyro's messages repeat arguments, broken into lines. So arguments are first parsed without
    credentials of URLs and control characters: if there is a mistake, this prints it and exits.
    """
    if shown := _printable(arguments):
        tyro.cli(_without_effect(command), args=shown, **settings)
    return tyro.cli(command, args=list(arguments), **settings)


def parse_subcommand(
    commands: Mapping[str, Callable[..., None]], arguments: Sequence[str], **settings: Any
) -> None:
    """Call the function whose name is the first argument, as `parse` does."""
    choose = tyro.extras.subcommand_cli_from_dict
    if shown := _printable(arguments):
        effectless = {name: _without_effect(command) for name, command in commands.items()}
        choose(effectless, args=shown, **settings)
    choose(dict(commands), args=list(arguments), **settings)


def _printable(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as they may be shown, or nothing if they may be shown as they are."""
    words = [printable(redacted_argument(word)) for word in arguments]
    return [] if words == list(arguments) else words


def _without_effect(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same options that does nothing; a dataclass has no effects."""
    if isinstance(command, type):
        return command

    @wraps(command)
    def do_nothing(*_values: object, **_options: object) -> None:
        pass

    return do_nothing
