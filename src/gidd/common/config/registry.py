"""Components by name: noise schedules, objectives, steps, backbones and the other `KINDS`.

Runs and models are saved with the names of their components, and the command line chooses them by
name (docs/extending.md). Each kind has a table of gidd's own; `register` and the entry points
`gidd.plugins` of installed packages add others. No file names a module to import.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeVar

from gidd.common.terminal import did_you_mean, shorten
from gidd.errors import ComponentNotInstalled, ConfigError

PLUGINS = "gidd.plugins"  # entry-point group of packages with components
_SAVED_FIELDS = ("schedule", "curve", "amount", "backbone")
"""Kinds whose objects are saved with a model: their options are the fields of a dataclass."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """A kind of components."""

    home: str
    """Package that lists its components in a table."""
    table: str
    """Attribute of the package: name -> component, or the name of an attribute that is one."""
    base: str | None = None
    """Attribute of the package: the base class that a component must have."""
    supplied: tuple[str, ...] = ()
    """Parameters that the library supplies; all others are options."""


_STEP_PARAMETERS = ("schedule", "s", "t", "state", "predict")
KINDS: dict[str, Kind] = {
    "schedule": Kind("gidd.diffusion.schedules", "COMPONENTS", "MixingSchedule", ("vocab",)),
    "curve": Kind("gidd.diffusion.schedules", "CURVES", "Curve"),
    "amount": Kind("gidd.diffusion.schedules", "AMOUNTS", "NoiseAmount"),
    "weighting": Kind("gidd.diffusion.weighting", "COMPONENTS", "Weighting", ("schedule",)),
    "step": Kind("gidd.sampling.steps", "COMPONENTS", None, _STEP_PARAMETERS),
    "corrector": Kind("gidd.sampling.correctors", "COMPONENTS", None, _STEP_PARAMETERS),
    "backbone": Kind("gidd.models.backbones", "COMPONENTS", None, ("vocab_size", "max_length")),
    "corpus": Kind("gidd.data.corpora", "CORPORA", "Corpus"),
    "objective": Kind("gidd.training.objectives", "COMPONENTS", None, ("denoiser", "noisy")),
    "optimizer": Kind("gidd.training.optim", "COMPONENTS", None, ("network", "optim")),
    "importer": Kind("gidd.models.importers", "COMPONENTS", "Importer"),
    "metric": Kind("gidd.evaluation.metrics", "COMPONENTS", None, ("text", "tokens")),
}
"""Kinds of components by name."""

UNREGISTERED = "unregistered"
"""Name of a component that was given as a Python object whose class is not registered."""

RESERVED_OPTIONS = ("kind", "package")  # keys of a saved component besides its options


class Registration(NamedTuple):
    """A component that was added by `register`."""

    make: Any
    """The class or function."""
    package: str
    """Package that added it, or the module if it is in no package; empty for those of gidd."""


_ADDED: dict[tuple[str, str], Registration] = {}


def register(kind: str, name: str) -> Callable[[_T], _T]:
    """Return a decorator that makes a class or function a component, known by `name`.

    Args:
        kind: One of `KINDS`, e.g. "weighting". docs/extending.md says what a component of each kind
            must be.
        name: Lower-case letters, digits, hyphens and underscores. Registering a name again replaces
            the component if its module is the same, as when a cell of a notebook is run again.
    """
    _require_kind(kind)
    is_name = isinstance(name, str) and _NAME.fullmatch(name) and name != UNREGISTERED  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_name:
        raise ConfigError(
            f"the name of a {kind} must have lower-case letters, digits, hyphens and underscores, "
            f"got {shorten(name)}. Use a name such as my-{kind}."
        )

    def add(make: _T) -> _T:
        _require_component(kind, name, make)
        _ADDED[kind, name] = Registration(make, _package_of(make))
        return make

    return add


def find_component(kind: str, name: object, package: str = "") -> Registration:
    """Return a component, or raise; `package`, for the message, is said to have registered it."""
    _require_kind(kind)
    if isinstance(name, str):
        if name in _table(kind):
            return Registration(_builtin(kind, name), "")
        if (kind, name) not in _ADDED:
            _load_plugins()
        if component := _ADDED.get((kind, name)):
            return component
    names = component_names(kind)
    if package:
        raise ComponentNotInstalled(
            f"the {kind} {shorten(name)} is not installed. According to the file, it is part "
            f"of {shorten(package)}: install that package if you trust it."
        )
    hint = did_you_mean(name, names) if isinstance(name, str) else ""
    raise ConfigError(f"{kind} must be one of {', '.join(names)}, got {shorten(name)}.{hint}")


def component_names(kind: str) -> list[str]:
    """Return the names of all components of a kind, those of plugins last."""
    _require_kind(kind)
    _load_plugins()
    return [*_table(kind), *(name for of, name in _ADDED if of == kind)]


def builtin_components(kind: str) -> dict[str, Any]:
    """Return the components of a kind in this package by name."""
    return {name: _builtin(kind, name) for name in _table(kind)}


def name_of(make: object) -> tuple[str, str, str] | None:
    """Return kind, name and package of a component, or None if a class or function is not one."""
    for (kind, name), added in _ADDED.items():
        if added.make is make:
            return kind, name, added.package
    attribute = getattr(make, "__name__", "")
    for kind, (home, _, _, _) in KINDS.items():
        if home in sys.modules:  # otherwise its components have not been imported either
            for name, component in _table(kind).items():
                if component == attribute and _builtin(kind, name) is make:
                    return kind, name, ""
    return None


def kind_of_base(base: object) -> str | None:
    """Return the kind whose components have this base class, or None."""
    for name, (home, _, attribute, _) in KINDS.items():
        if attribute is not None and attribute == getattr(base, "__name__", ""):
            return name if base is getattr(importlib.import_module(home), attribute) else None
    return None


def _require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {shorten(kind)}.")


def _require_component(kind: str, name: str, make: Any) -> None:
    """Raise `ConfigError` if a name is taken, or a class or function is not of its kind."""
    old = _ADDED.get((kind, name))
    if name in _table(kind) or (old and old.make.__module__ != make.__module__):
        owner = old.package if old else "gidd"
        raise ConfigError(f"there is a {kind} {name!r} in {owner} already. Choose another name.")
    home, _, base, _ = KINDS[kind]
    parent = object if base is None else getattr(importlib.import_module(home), base)
    if not callable(make):
        must_be = "a class or function"
    elif base is not None and not (isinstance(make, type) and issubclass(make, parent)):
        must_be = f"a subclass of {home}.{base}"
    elif kind == "backbone" and not callable(getattr(make, "build", None)):
        must_be = "a dataclass of sizes with a method build() that returns the network"
    elif kind in _SAVED_FIELDS and not is_dataclass(make):
        must_be = "a dataclass, whose fields are saved (@gidd.register above @dataclass)"
    else:
        return
    got = shorten(getattr(make, "__name__", make))
    raise ConfigError(f"the {kind} {name!r} must be {must_be}, got {got}.")


def _table(kind: str) -> Mapping[str, Any]:
    home, table, _, _ = KINDS[kind]
    return getattr(importlib.import_module(home), table)


def _builtin(kind: str, name: str) -> Any:
    component = _table(kind)[name]
    if type(component) is not str:
        return component
    return getattr(importlib.import_module(KINDS[kind].home), component)


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
                "warning: the plugin %s of %s cannot be imported (%s: %s); its components are "
                "missing. Update or uninstall that package.",
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
