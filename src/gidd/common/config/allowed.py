"""Checks of options and arguments: the type first, then the range, in one message.

What a field may be stands in its annotation: `steps: Annotated[int, integer(1, 4096)] = 128`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from gidd.common.terminal import shorten
from gidd.errors import ConfigError, GiddError


class Allowed(NamedTuple):
    """The values that an option or argument may have."""

    contains: Callable[[Any], bool]
    text: str
    """The values in words."""
    fix: str = ""

    def problems(self, name: str, value: object) -> Iterator[str]:
        """Yield a message if a value is not allowed."""
        if not self.contains(value):
            yield f"{name} must be {self.text}, got {shorten(value)}. {self.fix}".rstrip()


def integer(least: int, most: int | None = None, fix: str = "") -> Allowed:
    """Allow integers from `least` to `most`, by default torch's largest; not True and False."""
    last = 2**63 - 1 if most is None else most
    text = f"of at least {least}, below 2**63" if most is None else f"from {least} to {most:,}"

    def contains(value: object) -> bool:
        return _is_a(Integral, value) and least <= cast(int, value) <= last

    return Allowed(contains, f"an integer {text}", fix)


SEED = integer(0)._replace(text="an integer in [0, 2**63)")


def within(is_inside: Callable[[float], bool], text: str, fix: str = "") -> Allowed:
    """Allow numbers for which a condition holds; not True and False. `text` is the range."""

    def contains(value: object) -> bool:
        return _is_a(Real, value) and is_inside(cast(float, value))

    return Allowed(contains, text, fix)


def number(is_inside: Callable[[float], bool], text: str, fix: str = "") -> Allowed:
    """Allow numbers for which a condition holds; the message names the type as well."""
    return within(is_inside, f"a number {text}", fix)


POSITIVE = number(lambda value: 0 < value < math.inf, "above 0")


def at_least(least: int, fix: str = "") -> Allowed:
    """Allow numbers from `least` on."""
    return within(lambda value: value >= least, f"at least {least}", fix)


def choice(names: Sequence[str], fix: str = "") -> Allowed:
    """Allow some strings."""
    return Allowed(names.__contains__, f"one of {', '.join(map(str, names))}", fix)


def optional(allowed: Allowed) -> Allowed:
    """Allow None as well."""

    def contains(value: object) -> bool:
        return value is None or allowed.contains(value)

    return allowed._replace(contains=contains)


def allowed_by(hint: Any) -> Allowed | None:
    """Return what an annotation allows: the `Allowed` of an `Annotated`, or names of a `Literal`.

    A union with None allows None as well. Other annotations say nothing about values: None.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inside = allowed_by(parts[0])
        return next((extra for extra in parts[1:] if isinstance(extra, Allowed)), inside)
    if origin is Literal:
        return choice(parts)
    if origin in (Union, UnionType) and len(parts) == 2 and NoneType in parts:
        inside = allowed_by(parts[parts[0] is NoneType])
        return inside and optional(inside)
    return None


@cache
def allowed_in(kind: type) -> dict[str, Allowed]:
    """Return what the fields of a class may be, by name.

    A subclass that declares a field again without a range, for another default, keeps its range.
    """
    ranges: dict[str, Allowed] = {}
    for base in reversed(kind.__mro__):
        hints = get_type_hints(base, include_extras=True)
        ranges |= {name: allowed for name, hint in hints.items() if (allowed := allowed_by(hint))}
    return ranges


def problems_of(options: Any, prefix: str = "") -> Iterator[str]:
    """Yield a message per field whose value its annotation does not allow, then across fields.

    `prefix` goes before the name of a field. Those across fields are what an optional method
    `problems` of the dataclass yields.
    """
    for name, allowed in allowed_in(type(options)).items():
        yield from allowed.problems(f"{prefix}{name}", getattr(options, name))
    if (across := getattr(options, "problems", None)) is not None:
        yield from across()


def require_allowed(options: Any, error: type[GiddError] = ConfigError) -> None:
    """Raise an error with a line for each of `problems_of`; of use as `__post_init__`."""
    require_none(problems_of(options), error)


def unused_problems(options: Any, prefix: str, needs: str) -> Iterator[str]:
    """Yield a message per field away from its default, for options that nothing uses."""
    default = type(options)()
    for field in fields(options):
        if getattr(options, field.name) != getattr(default, field.name):
            yield f"{prefix}{field.name} needs {needs}."


def require_arguments(**arguments: tuple[object, Allowed]) -> None:
    """Raise a `ConfigError` with a line for each argument whose value is not allowed."""
    require_none(
        problem
        for name, (value, allowed) in arguments.items()
        for problem in allowed.problems(name, value)
    )


def require_none(problems: Iterable[str], error: type[GiddError] = ConfigError) -> None:
    """Raise one error with a line for each problem, if there are any."""
    if messages := list(problems):
        raise error("\n".join(messages))


def _is_a(kind: type, value: object) -> bool:
    """Whether a value, of Python or numpy, is a number of this kind; bool is a kind of int."""
    return isinstance(value, kind) and not isinstance(value, bool)
