"""`Component`: a component that a run uses, by its name, with a value for each of its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gidd.common.config.options import REQUIRED, options_of
from gidd.common.config.registry import UNREGISTERED, find_component, name_of
from gidd.common.terminal import did_you_mean, shorten
from gidd.errors import ComponentNotInstalled, ConfigError

COMPONENT_KIND = "component kind"
"""Key in the metadata of a dataclass field that holds a `Component`: its kind."""


@dataclass(frozen=True)
class Component:
    """A component by name, and its options: `component("schedule", "hybrid", p_uniform=0.1)`."""

    kind: str
    """One of `gidd.common.config.registry.KINDS`."""
    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: {})
    """Complete: options that were not given have their defaults."""

    def __post_init__(self) -> None:
        if self.name == UNREGISTERED:
            return
        declared = options_of(self.kind, self.name)
        for name in self.options:
            if name not in declared:
                hint = did_you_mean(name, declared)
                raise ConfigError(
                    f"the {self.kind} {self.name} has no option {name!r}.{hint} It has "
                    f"{', '.join(declared) or 'no options'}."
                )
        full = {name: option.default for name, option in declared.items()} | {**self.options}
        if missing := [name for name, value in full.items() if value is REQUIRED]:
            raise ConfigError(f"the {self.kind} {self.name} needs {', '.join(missing)}.")
        object.__setattr__(self, "options", full)

    def changed(self, **options: Any) -> Component:
        """Return the component with other values of some options."""
        return Component(self.kind, self.name, {**self.options, **options})

    def renamed(self, name: str) -> Component:
        """Return the component `name` of the same kind; options of both keep their values."""
        if name == self.name:
            return self
        shared = options_of(self.kind, name)
        return Component(self.kind, name, {k: v for k, v in self.options.items() if k in shared})

    def build(self, **supplied: Any) -> Any:
        """Call the component with its options and what the library supplies.

        A function that the library calls later, such as a step, is returned with its options.
        """
        if self.name == UNREGISTERED:
            raise ComponentNotInstalled(
                f"the {self.kind} {shorten(self.options.get('class'))} was given as a Python "
                f'object, which no file has. Pass it, or use @gidd.register("{self.kind}", NAME).'
            )
        make = find_component(self.kind, self.name).make
        if isinstance(make, type) or supplied:
            return make(**supplied, **self.options)
        return partial(make, **self.options) if self.options else make

    def problems(self) -> Iterable[str]:
        """Yield one message per option whose value is not allowed."""
        declared = {} if self.name == UNREGISTERED else options_of(self.kind, self.name)
        for name, option in declared.items():
            if option.allowed is not None:
                yield from option.allowed.problems(name, self.options[name])


def component(kind: str, name: str, /, **options: Any) -> Component:
    """Return a component by name; options that are not given have their defaults."""
    return Component(kind, name, options)


def component_of(kind: str, value: Any, options: Mapping[str, Any]) -> Component:
    """Return the component of a Python object, whose class need not be registered."""
    registered = name_of(type(value))
    if registered is None or registered[0] != kind:
        return Component(kind, UNREGISTERED, {"class": type(value).__name__})
    return Component(kind, registered[1], options)
