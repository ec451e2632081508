"""Parse the arguments of a command: `--noise NAME` and `--noise.OPTION VALUE` for components.

Messages about mistakes are safe to print.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import tyro

from gidd.common.config.components import Component
from gidd.common.config.options import REQUIRED, options_of
from gidd.common.config.registry import component_names
from gidd.common.terminal import printable
from gidd.common.urls import redacted_argument
from gidd.errors import ConfigError

_T = TypeVar("_T")


def parse(
    command: Callable[..., _T] | dict[str, Callable[..., _T]],
    arguments: Sequence[str],
    **settings: Any,
) -> _T:
    """Call a function, or build a dataclass, with the options in `arguments`.

    Of several functions, the first argument names one. tyro's messages repeat arguments, so these
    are first parsed without credentials of URLs and control characters: mistakes are printed then.
    """
    of_several = tyro.extras.subcommand_cli_from_dict
    run: Any = of_several if isinstance(command, dict) else tyro.cli
    words = [printable(redacted_argument(word)) for word in arguments]
    if words != list(arguments):
        run(_without_effect(command), args=words, **settings)
    return run(command, args=list(arguments), **settings)


def _without_effect(command: Any) -> Any:
    """Return a function with the same options that does nothing; a dataclass has no effects."""
    if isinstance(command, dict):
        return {k: _without_effect(v) for k, v in cast("dict[str, Any]", command).items()}
    if isinstance(command, type):
        return command

    @wraps(command)
    def do_nothing(*_values: object, **_options: object) -> None:
        pass

    return do_nothing


_PLAIN = (int, float, str, bool, Path, type(None))  # types of values that can be typed


class ComponentOptions(NamedTuple):
    """A component chosen by name, and a dataclass of its options that can be typed."""

    kind: str
    name: str
    default: Any  # an instance of the dataclass: the values before any option is parsed
    kept: Mapping[str, Any]  # values of the other options

    def component(self, parsed: Any) -> Component:
        """Return the component with the parsed options."""
        typed = {option.name: getattr(parsed, option.name) for option in fields(self.default)}
        return Component(self.kind, self.name, {**self.kept, **typed})


def chosen_name(flag: str, words: Sequence[str]) -> str | None:
    """Return the last value of `--flag` among the arguments, before they are parsed."""
    given = [word.partition("=")[2] for word in words if word.startswith(f"--{flag}=")]
    given += [after for word, after in pairwise(words) if word == f"--{flag}"]
    return given[-1] if given else None


def name_option(kind: str, flag: str, help: str) -> Any:
    """Return the type of an option whose value is the name of a component of a kind."""
    names = Literal.__getitem__(tuple(component_names(kind)))  # pyright: ignore
    return Annotated[names | None, tyro.conf.arg(name=flag, help=help)]


def component_options(
    flag: str, kind: str, name: str, before: Mapping[str, Any]
) -> ComponentOptions:
    """Return the options of a component; those that `before` has too keep their values."""
    try:
        declared = options_of(kind, name)
    except ConfigError as error:
        raise ConfigError(f"--{flag}: {error} Is its package installed?") from error
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
    return ComponentOptions(kind, name, options(**given), kept)


def _can_be_typed(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or _can_be_typed(part) for part in get_args(hint))
    return hint in _PLAIN or get_origin(hint) is Literal
