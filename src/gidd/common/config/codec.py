"""Dataclasses as plain data (dictionaries, lists, strings, numbers), JSON or YAML, and back.

A dataclass becomes its fields and a `kind`, the name of its class; a component its options, its
name as `kind` and the `package` that registered it, if not gidd. Reading checks fields and types,
and builds only classes that the declared types or the registry name.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from gidd.common.config.components import COMPONENT_KIND, Component
from gidd.common.config.options import REQUIRED, options_of
from gidd.common.config.registry import KINDS, UNREGISTERED, find_component, kind_of_base, name_of
from gidd.common.files import MAX_DEPTH, YAML_BYTES
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, ScheduleError

_T = TypeVar("_T")
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    float: (float, int),
    Any: (str, int, float, bool, type(None)),  # of options without a type
}

KIND, PACKAGE = "kind", "package"

ADDED_LATER = "added later"
"""Metadata of a field that records of older versions lack; there it has its default."""

RECORDED_AS = "recorded as"
"""Key in the metadata of a field: a function that returns the value to write, without secrets."""


def to_plain(value: Any) -> Any:
    """Convert a dataclass, a `Component` or a value of one of its fields to plain data."""
    if isinstance(value, Component):
        options = {name: to_plain(option) for name, option in value.options.items()}
        registered = None if value.name == UNREGISTERED else find_component(value.kind, value.name)
        return _component(value.name, registered.package if registered else "", options)
    if dataclasses.is_dataclass(value):
        init_fields = [field for field in dataclasses.fields(value) if field.init]
        writers = {field.name: field.metadata.get(RECORDED_AS, to_plain) for field in init_fields}
        fields = {name: to_plain(write(getattr(value, name))) for name, write in writers.items()}
        if (entry := name_of(type(value))) is None:
            for base in type(value).__mro__:
                if kind := kind_of_base(base):
                    raise cannot_be_saved(value, kind)
            return {KIND: type(value).__name__} | fields
        kind, name, package = entry
        supplied = KINDS[kind].supplied if kind != "backbone" else ()  # sizes are saved
        options = {name: plain for name, plain in fields.items() if name not in supplied}
        return _component(name, package, options)
    if isinstance(value, tuple):
        return [to_plain(item) for item in cast("tuple[Any, ...]", value)]
    return str(value) if isinstance(value, Path) else value


def cannot_be_saved(value: object, kind: str) -> ConfigError:
    """Return the error for a component of a kind that is not registered."""
    return ConfigError(
        f"{type(value).__name__} cannot be saved: it is not registered. Decorate the class with "
        f'@gidd.register("{kind}", NAME); options that are Python functions cannot be saved.'
    )


def _component(name: str, package: str, options: dict[str, Any]) -> dict[str, Any]:
    return {KIND: name} | ({PACKAGE: package} if package else {}) | options


def from_plain(kind: type[_T], plain: Any, where: str = "run", *, has_kinds: bool = True) -> _T:
    """Build a dataclass from plain data: from what `to_plain` returned, or `asdict`.

    `where` is the name of the value in errors; without `has_kinds`, no object names its class.
    """
    values = _object(plain, where)
    if has_kinds and (name := values.pop(KIND, None)) != kind.__name__:
        raise ConfigError(f"{where}.{KIND} must be {kind.__name__}, got {shorten(name)}.")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # pyright: ignore[reportArgumentType]
    required = {name for name, field in fields.items() if ADDED_LATER not in field.metadata}
    _require_fields(values, set(fields), required, where, "gidd")
    hints = get_type_hints(kind)
    for name, value in values.items():
        inside, component_kind = f"{where}.{name}", fields[name].metadata.get(COMPONENT_KIND)
        values[name] = (
            _decode(hints[name], value, inside, has_kinds)
            if component_kind is None
            else component_from_plain(component_kind, value, inside)
        )
    return _build(kind, where, values)


def component_from_plain(kind: str, plain: Any, where: str) -> Component:
    """Return the component that plain data describes; options that it lacks have their defaults."""
    values = _object(plain, where)
    name, package = values.pop(KIND, None), values.pop(PACKAGE, "")
    if name == UNREGISTERED:
        class_name = str(values.get("class"))
        class_name = class_name if class_name.isidentifier() else "?"
        return Component(kind, UNREGISTERED, {"class": class_name})
    try:
        declared = options_of(kind, cast(str, name), cast(str, package))
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error
    required = {name for name, option in declared.items() if option.default is REQUIRED}
    _require_fields(values, set(declared), required, where, shorten(package) if package else "gidd")
    for option, value in values.items():
        values[option] = _decode(declared[option].hint, value, f"{where}.{option}")
    return _build(Component, where, {"kind": kind, "name": name, "options": values})


def object_from_plain(kind: str, plain: Any, where: str, **supplied: Any) -> Any:
    """Build a component of a kind from plain data and what the library supplies."""
    chosen = component_from_plain(kind, plain, where)
    return _build(chosen.build, where, supplied)


def _object(plain: Any, where: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} must be an object, got {shorten(plain)}.")
    return dict(cast("dict[str, Any]", plain))


def _require_fields(
    values: dict[str, Any], known: set[str], required: set[str], where: str, package: str
) -> None:
    unknown = sorted(map(str, values.keys() - known))  # in YAML, keys may have any type
    missing = sorted(required - values.keys())
    if unknown or missing:
        raise ConfigError(
            f"{where} has unknown fields {shorten(unknown)} and lacks {missing}. "
            f"It was written by another version of {package}; use that version."
        )


def _build(make: Any, where: str, values: dict[str, Any]) -> Any:
    try:
        return make(**values)
    except (ConfigError, ScheduleError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _decode(hint: Any, plain: Any, where: str, has_kinds: bool = True) -> Any:
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for choice in cast("tuple[Any, ...]", choices):
        if dataclasses.is_dataclass(cast(object, choice)):
            name = plain.get(KIND) if isinstance(plain, dict) else None
            if len(choices) == 1 or name == choice.__name__:
                return from_plain(choice, plain, where, has_kinds=has_kinds)
        elif (kind := kind_of_base(choice)) is not None:
            return object_from_plain(kind, plain, where)
        elif get_origin(choice) is tuple and isinstance(plain, list):
            item, values = get_args(choice)[0], enumerate(cast("list[Any]", plain))
            return tuple(_decode(item, value, f"{where}[{k}]", has_kinds) for k, value in values)
        elif get_origin(choice) is Mapping and isinstance(plain, dict):
            item, pairs = get_args(choice)[1], cast("dict[str, Any]", plain).items()
            places = {name: f"{where}.{shorten(name)}" for name, _ in pairs}
            return {name: _decode(item, value, places[name], has_kinds) for name, value in pairs}
        elif get_origin(choice) is Literal and plain in get_args(choice):
            return plain
        elif choice is Path and isinstance(plain, str):
            return Path(plain)
        elif type(plain) in _ACCEPTED.get(choice, (choice,)):
            return plain
    names = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
    raise ConfigError(f"{where} must be {names}, got {shorten(plain)}.")


def to_yaml(value: Any) -> str:
    """Convert a dataclass to YAML, in the order of its fields."""
    return yaml.safe_dump(to_plain(value), sort_keys=False)


def plain_from_yaml(text: str) -> Any:
    """Return the plain data of YAML; the text is not trusted."""
    YAML_BYTES.require(len(text), "a YAML configuration", ConfigError)
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration is not valid YAML: {error}") from error


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
