"""Parts by name: noise schedules, loss weightings, steps, correctors, backbones, corpora.

A part is a class or a function with a name. Runs and models are saved with the names of their
parts, and the command line chooses parts by name. The parts of this package are listed in a table
of their folder; others are added by `register`::

    @gidd.register("schedule", "banded")
    @dataclass(frozen=True)
    class BandedSchedule(MixingSchedule): ...

A package that is installed adds its parts by an entry point of the group `gidd.plugins` that names
a module: it is imported when a name is not known, or when all names are listed. No file names a
module to import.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeVar

from gidd.common.terminal import shorten
from gidd.errors import ConfigError, PartNotInstalled

PLUGINS = "gidd.plugins"
"""Entry-point group of packages with parts."""

_SAVED_FIELDS = ("schedule", "curve", "amount", "backbone")
"""Kinds whose objects are saved with a model: their options are the fields of a dataclass."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """A kind of parts."""

    home: str
    """Package that lists its parts in a table."""

    table: str
    """Attribute of the package: name -> part, or the attribute of the package that is the part."""

    base: str | None = None
    """Attribute of the package: the base class that a part must have."""

    supplied: tuple[str, ...] = ()
    """Parameters that the library supplies; all others are options."""


_STEP_PARAMETERS = ("schedule", "s", "t", "canvas", "prediction")
KINDS: dict[str, Kind] = {
    "schedule": Kind("gidd.diffusion.schedules", "PARTS", "MixingSchedule", ("vocab",)),
    "curve": Kind("gidd.diffusion.schedules", "CURVES", "Curve"),
    "amount": Kind("gidd.diffusion.schedules", "AMOUNTS", "NoiseAmount"),
    "weighting": Kind("gidd.diffusion.weighting", "PARTS", "Weighting", ("schedule",)),
    "step": Kind("gidd.sampling.steps", "PARTS", None, _STEP_PARAMETERS),
    "corrector": Kind("gidd.sampling.correctors", "PARTS", None, _STEP_PARAMETERS),
    "backbone": Kind("gidd.models.backbones", "PARTS", None, ("vocab_size", "max_length")),
    "corpus": Kind("gidd.data.corpora", "CORPORA", "Corpus"),
}
"""Kinds of parts by name."""

UNREGISTERED = "unregistered"
"""Name of a part that was given as a Python object whose class is not registered."""

RESERVED_OPTIONS = ("kind", "package")
"""Keys of a saved part besides its options."""


class Registration(NamedTuple):
    """A part that was added by `register`."""

    make: Any
    """The class or function."""

    package: str
    """Package that added it, or the module if it is in no package; empty for those of gidd."""


_ADDED: dict[tuple[str, str], Registration] = {}


def register(kind: str, name: str) -> Callable[[_T], _T]:
    """Return a decorator that makes a class or function a part, known by `name`.

    Args:
        kind: "schedule", "curve", "amount", "weighting", "step", "corrector", "backbone" or
            "corpus". docs/extending.md says what a part of each kind must be.
        name: Lower-case letters, digits, hyphens and underscores. Registering a name again replaces
            the part if its module is the same, as when a cell of a notebook is run again.
    """
    _require_kind(kind)
    is_name = isinstance(name, str) and _NAME.fullmatch(name) and name != UNREGISTERED  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_name:
        raise ConfigError(
            f"the name of a {kind} must have lower-case letters, digits, hyphens and underscores, "
            f"got {shorten(name)}. Use a name such as my-{kind}."
        )

    def add(make: _T) -> _T:
        _require_free(kind, name, make)
        _require_base(kind, name, make)
        _ADDED[kind, name] = Registration(make, _package_of(make))
        return make

    return add


def find_part(kind: str, name: object, package: str = "") -> Registration:
    """Return a part; an unknown name is a `ConfigError` that lists the known ones.

    Args:
        kind: One of `KINDS`.
        name: Name of the part.
        package: Package that is said to have registered it, for the message.
    """
    _require_kind(kind)
    if isinstance(name, str):
        if name in _table(kind):
            return Registration(_builtin(kind, name), "")
        if (kind, name) not in _ADDED:
            _load_plugins()
        if found := _ADDED.get((kind, name)):
            return found
    names = part_names(kind)
    if package:
        raise PartNotInstalled(
            f"the {kind} {shorten(name)} is not installed. According to the file, it is part "
            f"of {shorten(package)}: install that package if you trust it, or run the code that "
            f"registers the part. Installed are {', '.join(names)}."
        )
    near = get_close_matches(name, names, 1) if isinstance(name, str) else []
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{kind} must be one of {', '.join(names)}, got {shorten(name)}.{hint}")


def part_names(kind: str) -> list[str]:
    """Return the names of all parts of a kind, those of plugins last."""
    _require_kind(kind)
    _load_plugins()
    return [*_table(kind), *(name for of, name in _ADDED if of == kind)]


def builtin_parts(kind: str) -> dict[str, Any]:
    """Return the parts of a kind in this package by name."""
    return {name: _builtin(kind, name) for name in _table(kind)}


def name_of(make: object) -> tuple[str, str, str] | None:
    """Return kind, name and package of a part, or None if a class or function is not one."""
    for (kind, name), added in _ADDED.items():
        if added.make is make:
            return kind, name, added.package
    attribute = getattr(make, "__name__", "")
    for kind, (home, _, _, _) in KINDS.items():
        if home in sys.modules:  # otherwise its parts have not been imported either
            for name, part in _table(kind).items():
                if part == attribute and _builtin(kind, name) is make:
                    return kind, name, ""
    return None


def kind_of_base(base: object) -> str | None:
    """Return the kind whose parts have this base class, or None."""
    for name, (home, _, attribute, _) in KINDS.items():
        if attribute is not None and attribute == getattr(base, "__name__", ""):
            return name if base is getattr(importlib.import_module(home), attribute) else None
    return None


def _require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {shorten(kind)}.")


def _require_free(kind: str, name: str, make: Any) -> None:
    if name in _table(kind):
        raise ConfigError(f"there is a {kind} {name!r} in gidd already. Choose another name.")
    old = _ADDED.get((kind, name))
    if old is not None and old.make.__module__ != make.__module__:
        raise ConfigError(
            f"there is a {kind} {name!r} of {old.package} already. Choose another name."
        )


def _require_base(kind: str, name: str, make: Any) -> None:
    if not callable(make):
        raise ConfigError(f"the {kind} {name!r} must be a class or function, got {shorten(make)}.")
    home, _, base, _ = KINDS[kind]
    given = shorten(getattr(make, "__name__", make))
    if base is not None:
        parent = getattr(importlib.import_module(home), base)
        if not isinstance(make, type) or not issubclass(make, parent):
            raise ConfigError(
                f"the {kind} {name!r} must be a subclass of {home}.{base}, got {given}."
            )
    if kind == "backbone" and not callable(getattr(make, "build", None)):
        raise ConfigError(
            f"the backbone {name!r} must be a dataclass of sizes with a method build() that "
            f"returns the network, got {given}."
        )
    if kind in _SAVED_FIELDS and not is_dataclass(make):
        raise ConfigError(
            f"the {kind} {name!r} must be a dataclass, got {given}: its fields are saved with a "
            "model. Write @gidd.register above @dataclass(frozen=True)."
        )


def _table(kind: str) -> Mapping[str, Any]:
    home, table, _, _ = KINDS[kind]
    return getattr(importlib.import_module(home), table)


def _builtin(kind: str, name: str) -> Any:
    part = _table(kind)[name]
    return getattr(importlib.import_module(KINDS[kind].home), part) if type(part) is str else part


@cache
def _plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=PLUGINS))


@cache
def _load_plugins() -> None:
    """Import the modules of all plugins, once; one that fails is reported and left out."""
    for plugin in _plugins():
        try:
            plugin.load()
        except Exception as error:
            _log.warning(
                "warning: the plugin %s of %s cannot be imported (%s: %s); its parts are missing. "
                "Update or uninstall that package.",
                *(plugin.value, _distribution(plugin), type(error).__name__, error),
            )


def _package_of(make: Any) -> str:
    top = str(make.__module__).partition(".")[0]
    for plugin in _plugins():
        if plugin.module.partition(".")[0] == top:
            return _distribution(plugin)
    return str(make.__module__)


def _distribution(plugin: EntryPoint) -> str:
    return "a package" if plugin.dist is None else f"{plugin.dist.name} {plugin.dist.version}"
