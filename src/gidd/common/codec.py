"""Dataclasses as plain data (dictionaries, lists, strings, numbers), JSON or YAML, and back.

A dataclass becomes a dictionary of its fields and a `kind`: the name of its class, or the name that
a table of `parts` gives it. Reading refuses unknown and missing fields and values of another type,
and builds only classes that the declared types or the table name: no file can name a class to
import.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from gidd.common.limits import MAX_DEPTH, YAML_BYTES
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, ScheduleError

_T = TypeVar("_T")
_NO_PARTS: Mapping[str, type] = types.MappingProxyType({})

KIND = "kind"

RECORDED_AS = "recorded as"
"""Key in the metadata of a field: a function that returns the value to write, without secrets."""


def to_plain(value: Any, parts: Mapping[str, type] = _NO_PARTS, omit: str = "") -> Any:
    """Convert a dataclass to plain data.

    Args:
        value: The dataclass, or a value of one of its fields.
        parts: Classes by the name to write. If given, other classes are refused.
        omit: Name of a field to leave out.
    """
    if dataclasses.is_dataclass(value):
        names = {part: name for name, part in parts.items()}
        if parts and type(value) not in names:
            raise ConfigError(
                f"{type(value).__name__} cannot be saved: a Python function has no form that "
                f"another program could read. Use one of {', '.join(parts)}."
            )
        fields = {
            field.name: to_plain(_recorded(field, getattr(value, field.name)), parts)
            for field in dataclasses.fields(value)
            if field.init and field.name != omit
        }
        return {KIND: names.get(type(value), type(value).__name__)} | fields
    if isinstance(value, tuple):
        return [to_plain(part, parts) for part in cast("tuple[Any, ...]", value)]
    return str(value) if isinstance(value, Path) else value


def _recorded(field: dataclasses.Field[Any], value: Any) -> Any:
    change = field.metadata.get(RECORDED_AS)
    return value if change is None else change(value)


def from_plain(
    kind: type[_T],
    plain: Any,
    where: str = "run",
    parts: Mapping[str, type] = _NO_PARTS,
    **given: Any,
) -> _T:
    """Build a dataclass from plain data.

    Args:
        kind: The class to build, or a base class of some of the `parts`.
        plain: What `to_plain` returned.
        where: How errors name this value.
        parts: Classes by name, as for `to_plain`.
        **given: Fields that are not part of the data.
    """
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} must be an object with a `{KIND}`, got {shorten(plain)}.")
    values = dict(cast("dict[str, Any]", plain))
    name = values.pop(KIND, None)
    allowed = {n: part for n, part in parts.items() if issubclass(part, kind)}
    allowed = allowed or {kind.__name__: kind}
    if not isinstance(name, str) or name not in allowed:
        raise ConfigError(
            f"{where}.{KIND} must be one of {', '.join(allowed)}, got {shorten(name)}."
        )
    chosen = allowed[name]
    names = set(_field_names(chosen)) - given.keys()
    unknown = sorted(map(str, values.keys() - names))  # in YAML, keys may have any type
    missing = sorted(names - values.keys())
    if unknown or missing:
        raise ConfigError(
            f"{where} has unknown fields {shorten(unknown)} and lacks {missing}. "
            "It was written by another version of gidd; use that version."
        )
    hints = get_type_hints(chosen)
    for field, value in values.items():
        given[field] = _decode(hints[field], value, f"{where}.{field}", parts)
    try:
        return chosen(**given)
    except (ConfigError, ScheduleError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _field_names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _decode(hint: Any, plain: Any, where: str, parts: Mapping[str, type]) -> Any:
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for choice in cast("tuple[Any, ...]", choices):
        if dataclasses.is_dataclass(cast(object, choice)) or choice in _bases(parts):
            name = plain.get(KIND) if isinstance(plain, dict) else None
            if len(choices) == 1 or name == choice.__name__:
                return from_plain(choice, plain, where, parts)
        elif get_origin(choice) is tuple:
            if isinstance(plain, list):
                item = get_args(choice)[0]
                return tuple(_decode(item, part, where, parts) for part in cast("list[Any]", plain))
        elif choice is Path:
            if isinstance(plain, str):
                return Path(plain)
        elif type(plain) is choice or (choice is float and type(plain) is int):
            return plain
    names = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
    raise ConfigError(f"{where} must be {names}, got {shorten(plain)}.")


def _bases(parts: Mapping[str, type]) -> set[type]:
    return {base for part in parts.values() for base in part.__mro__ if base is not object}


def to_yaml(value: Any) -> str:
    """Convert a dataclass to YAML, in the order of its fields."""
    return yaml.safe_dump(to_plain(value), sort_keys=False)


def from_yaml(kind: type[_T], text: str) -> _T:
    """Build a dataclass from the YAML of `to_yaml`; the text is not trusted."""
    YAML_BYTES.require(len(text), "a YAML configuration", ConfigError)
    try:
        plain = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"this is not YAML: {error}") from error
    return from_plain(kind, plain)


class _PlainLoader(yaml.SafeLoader):
    """Loads plain data without aliases, by which a small file can hold a huge value."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        if self._depth >= MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node
