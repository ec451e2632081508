"""Cases of a property: few in CI, all at night."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def few(*values: Iterable[Any], every: int) -> list[Any]:
    """Return all combinations of the values; all but one in `every` are marked `long`."""
    return [
        pytest.param(*case, marks=[pytest.mark.long] if number % every else [])
        for number, case in enumerate(product(*values))
    ]


def once(cases: Iterable[tuple[str, str]]) -> list[Any]:
    """Return cases of (surface, name), each name on one surface; on its others at night.

    The surfaces take turns, so that every one has some of the names.
    """
    surfaces: dict[str, list[str]] = {}
    for surface, name in cases:
        surfaces.setdefault(name, []).append(surface)
    return [
        pytest.param(surface, name, marks=[pytest.mark.long] if i != turn % len(choices) else [])
        for turn, (name, choices) in enumerate(surfaces.items())
        for i, surface in enumerate(choices)
    ]
