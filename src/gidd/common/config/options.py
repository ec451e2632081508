"""The options of a component: its parameters, except those that the library supplies.

They are declared once, by the component: as the fields of a dataclass with attribute docstrings,
or as the parameters of a function with an `Args:` section.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast, get_type_hints

from gidd.common.config.allowed import Allowed, allowed_by, allowed_in
from gidd.common.config.registry import KINDS, RESERVED_OPTIONS, find_component
from gidd.errors import ConfigError

REQUIRED = inspect.Parameter.empty  # default of an option that must be given
_PARSING = threading.Lock()
"""Held while source is parsed: `ast.parse` of Python 3.11 fails at times in several threads."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Option(NamedTuple):
    """An option of a component."""

    name: str
    hint: Any
    """Its type."""
    default: Any
    """Its default value, or `REQUIRED`."""
    help: str
    """What it is, in a line or a few."""
    allowed: Allowed | None
    """What its annotation allows; None: anything of its type."""


def options_of(kind: str, name: str, package: str = "") -> dict[str, Option]:
    """Return the options of a component by name, in the order of their declaration."""
    make = find_component(kind, name, package).make
    if not callable(make):
        return {}
    fields = dataclasses.fields(make) if dataclasses.is_dataclass(make) else ()
    factories = {  # a signature does not have their values
        field.name: field.default_factory
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }
    ranges = allowed_in(cast(type, make)) if fields else {}
    helps = _arguments_section(inspect.getdoc(make) or "")
    for component in reversed(make.__mro__[:-1]) if isinstance(make, type) else ():
        helps |= attribute_docstrings(component)
    options: dict[str, Option] = {}
    for parameter in inspect.signature(cast(Any, make)).parameters.values():
        key = parameter.name
        if key in KINDS[kind].supplied or parameter.kind in _VARIADIC:
            continue
        if key in RESERVED_OPTIONS:
            raise ConfigError(
                f"the {kind} {name!r} has an option {key!r}, a key of saved components. Rename it."
            )
        default = factories[key]() if key in factories else parameter.default
        hint, annotation = (_hint(make, parameter, extras) for extras in (False, True))
        allowed = ranges.get(key) or allowed_by(annotation)
        options[key] = Option(key, hint, default, helps.get(key, ""), allowed)
    return options


def _hint(make: Any, parameter: inspect.Parameter, extras: bool) -> Any:
    """Return the type of a parameter; with `extras`, as it is annotated."""
    if isinstance(make, type):
        return _class_hints(make, extras).get(parameter.name, Any)
    if parameter.annotation is REQUIRED:
        return Any
    # other parameters may have types for type checkers only
    alone: Any = SimpleNamespace(__annotations__={"hint": parameter.annotation})
    names = getattr(inspect.unwrap(make), "__globals__", {})
    return get_type_hints(alone, names, include_extras=extras)["hint"]


@cache  # takes a millisecond, and presets have many components
def _class_hints(make: type, extras: bool) -> dict[str, Any]:
    annotated: Any = make if dataclasses.is_dataclass(make) else make.__init__
    return get_type_hints(annotated, include_extras=extras)


@cache  # reads the source, which takes milliseconds
def attribute_docstrings(component: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class."""
    try:
        with _PARSING:
            tree = ast.parse(textwrap.dedent(inspect.getsource(component)))
    except (OSError, SyntaxError, TypeError):  # typed at a prompt
        return {}
    docstrings: dict[str, str] = {}
    definition = tree.body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    for field, after in zip(body, body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                docstrings[name] = inspect.cleandoc(str(text))
            case _:
                pass
    return docstrings


def _arguments_section(doc: str) -> dict[str, str]:
    _, _, section = doc.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    entries = re.findall(r"^    (\w+): (.+(?:\n {6,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
