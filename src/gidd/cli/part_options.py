"""Options of registered parts on the command line: `--noise NAME` and `--noise.OPTION VALUE`."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import tyro

from gidd.common.options import REQUIRED, options_of
from gidd.common.parts import Part
from gidd.common.registry import part_names
from gidd.errors import ConfigError

_PLAIN = (int, float, str, bool, Path, type(None))
"""Types of values that can be typed."""


class PartOptions(NamedTuple):
    """A part that was chosen by name, and a dataclass of those of its options that can be typed."""

    kind: str
    name: str
    default: Any
    """An instance of the dataclass: the values before any option is parsed."""

    kept: Mapping[str, Any]
    """Values of the other options."""

    def part(self, parsed: Any) -> Part:
        """Return the part with the parsed options."""
        typed = {part.name: getattr(parsed, part.name) for part in fields(parsed)}
        return Part(self.kind, self.name, {**self.kept, **typed})


def chosen_name(flag: str, words: Sequence[str]) -> str | None:
    """Return the last value of `--flag` among the arguments, before they are parsed."""
    given = [word.partition("=")[2] for word in words if word.startswith(f"--{flag}=")]
    given += [after for word, after in pairwise(words) if word == f"--{flag}"]
    return given[-1] if given else None


def name_option(kind: str, flag: str, help: str) -> Any:
    """Return the type of an option whose value is the name of a part of a kind."""
    names = Literal.__getitem__(tuple(part_names(kind)))  # pyright: ignore
    return Annotated[names | None, tyro.conf.arg(name=flag, help=help)]


def part_options(flag: str, kind: str, name: str, before: Mapping[str, Any]) -> PartOptions:
    """Return the options of a part; those that `before` has too keep their values."""
    try:
        declared = options_of(kind, name)
    except ConfigError as error:
        raise ConfigError(
            f"--{flag}: {error} A part of another package needs that package to be installed."
        ) from error
    values = {key: before.get(key, option.default) for key, option in declared.items()}
    typed = {key: option for key, option in declared.items() if _can_be_typed(option.hint)}
    if missing := [k for k in declared.keys() - typed.keys() if values[k] is REQUIRED]:
        raise ConfigError(
            f"--{flag} {name} needs {', '.join(missing)}, which cannot be typed. Use it from "
            f"Python: gidd.train({kind}=...)."
        )
    hints = [
        (key, Annotated[option.hint, tyro.conf.arg(help=option.help or None)], field(default=None))
        for key, option in typed.items()
    ]
    options = make_dataclass(f"{name} options", hints, frozen=True, kw_only=True)
    given = {k: tyro.MISSING if values[k] is REQUIRED else values[k] for k in typed}
    kept = {key: values[key] for key in declared.keys() - typed.keys()}
    return PartOptions(kind, name, options(**given), kept)


def _can_be_typed(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or _can_be_typed(part) for part in get_args(hint))
    return hint in _PLAIN or get_origin(hint) is Literal
