"""Parse the arguments of a command: `--noise NAME` and `--noise.OPTION VALUE` for components.

Messages about mistakes are safe to print.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from gidd.common.config.components import Component
from gidd.common.config.options import REQUIRED, attribute_docstrings, options_of
from gidd.common.config.registry import component_names
from gidd.common.terminal import printable
from gidd.common.urls import redacted_argument
from gidd.errors import ConfigError

_T = TypeVar("_T")


def parse(
    command: Callable[..., _T] | dict[str, Callable[..., _T]],
    arguments: Sequence[str],
    structures: Mapping[Any, StructConstructorSpec] = types.MappingProxyType({}),
    **settings: Any,
) -> _T:
    """Call a function, or build a dataclass, with the options in `arguments`.

    Of several functions, the first argument names one. `structures` has the options of classes that
    follow from other arguments. tyro's messages repeat arguments, so these are first parsed without
    credentials of URLs and control characters: mistakes are printed then.
    """
    registry = ConstructorRegistry()

    @registry.struct_rule
    def structure(info: StructTypeInfo) -> StructConstructorSpec | None:
        if isinstance(info.default, ComponentOptions):
            return info.default.structure
        return structures.get(info.type)

    with registry:
        return _parse(command, arguments, settings)


def _parse(command: Any, arguments: Sequence[str], settings: dict[str, Any]) -> Any:
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


@dataclass(frozen=True)
class ComponentOptions:
    """A component chosen by name, before its options are parsed."""

    kind: str
    name: str
    values: Mapping[str, Any]
    """A value of each option, or `REQUIRED`."""

    @property
    def structure(self) -> StructConstructorSpec:
        """Return how the component is built from its parsed options."""

        def build(**parsed: Any) -> Component:
            return Component(self.kind, self.name, {**self.values, **parsed})

        options = tuple(
            StructFieldSpec(
                key,
                option.hint,
                tyro.MISSING if self.values[key] is REQUIRED else self.values[key],
                option.help or None,
            )
            for key, option in options_of(self.kind, self.name).items()
            if _can_be_typed(option.hint)
        )
        return StructConstructorSpec(build, options)


def declared_fields(declared: type, values: Any = None) -> Iterator[StructFieldSpec]:
    """Yield the fields of a dataclass as options, with the values of an instance if that is one."""
    hints = get_type_hints(declared, include_extras=True)
    helps = dict[str, str]()
    for base in reversed(declared.__mro__[:-1]):
        helps |= attribute_docstrings(base)
    for option in fields(declared):
        default = tyro.MISSING
        if isinstance(values, declared):
            default = getattr(values, option.name)
        elif option.default is not MISSING:
            default = option.default
        elif option.default_factory is not MISSING:
            default = option.default_factory()
        yield StructFieldSpec(option.name, hints[option.name], default, helps.get(option.name))


def chosen_name(flag: str, words: Sequence[str]) -> str | None:
    """Return the last value of `--flag` among the arguments, before they are parsed."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"--{flag}=")]
    values += [after for word, after in pairwise(words) if word == f"--{flag}"]
    return values[-1] if values else None


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
    if missing := [
        key
        for key, option in declared.items()
        if values[key] is REQUIRED and not _can_be_typed(option.hint)
    ]:
        raise ConfigError(
            f"--{flag} {name} needs {', '.join(missing)}, which cannot be typed. Use it from "
            f"Python: gidd.train({kind}=...)."
        )
    return ComponentOptions(kind, name, values)


def _can_be_typed(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or _can_be_typed(part) for part in get_args(hint))
    return hint in _PLAIN or get_origin(hint) is Literal
