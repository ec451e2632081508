"""Checks of options and arguments: the type first, then the range, in one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, NamedTuple, cast

from gidd.common.terminal import shorten
from gidd.errors import ConfigError


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


def number(is_inside: Callable[[float], bool], text: str, fix: str = "") -> Allowed:
    """Allow numbers for which a condition holds; not True and False."""

    def contains(value: object) -> bool:
        return _is_a(Real, value) and is_inside(cast(float, value))

    return Allowed(contains, f"a number {text}", fix)


def choice(names: Sequence[str], fix: str = "") -> Allowed:
    """Allow some strings."""
    return Allowed(names.__contains__, f"one of {', '.join(names)}", fix)


def optional(allowed: Allowed) -> Allowed:
    """Allow None as well."""

    def contains(value: object) -> bool:
        return value is None or allowed.contains(value)

    return allowed._replace(contains=contains)


def field_problems(options: object, prefix: str = "", **fields: Allowed) -> Iterator[str]:
    """Yield a message per field whose value is not allowed; `prefix` goes before its name."""
    for name, allowed in fields.items():
        yield from allowed.problems(f"{prefix}{name}", getattr(options, name))


def unused_problems(options: Any, prefix: str, needs: str) -> Iterator[str]:
    """Yield a message per field away from its default, for options that nothing uses."""
    default = type(options)()
    for each in fields(options):
        if getattr(options, each.name) != getattr(default, each.name):
            yield f"{prefix}{each.name} needs {needs}."


def require_arguments(**arguments: tuple[object, Allowed]) -> None:
    """Raise a `ConfigError` with a line for each argument whose value is not allowed."""
    require_none(
        problem
        for name, (value, allowed) in arguments.items()
        for problem in allowed.problems(name, value)
    )


def require_none(problems: Iterable[str]) -> None:
    """Raise one `ConfigError` with a line for each problem, if there are any."""
    if found := list(problems):
        raise ConfigError("\n".join(found))


def _is_a(kind: type, value: object) -> bool:
    """Whether a value, of Python or numpy, is a number of this kind; bool is a kind of int."""
    return isinstance(value, kind) and not isinstance(value, bool)
