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
