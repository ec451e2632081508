"""The tests of tests/options set each option away from its default, and say what came of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

ERRORS = (ValueError, TypeError, SystemExit)
"""What a refusal may raise; ours (`ConfigError`, `DataError`, ...) are ValueErrors."""


def check_option(
    request: pytest.FixtureRequest, surface: str, option: str, default: Any, away: Callable[[], Any]
) -> None:
    """Fails unless `away()` differs from `default` or is refused by the option's (last) name.

    `away` sets the option away from its default and returns a result, `default` is that without.
    The outcome is a row of the table that `pytest tests/options` prints at its end.
    """
    name = option.rpartition(".")[2]
    try:
        result = "no effect" if is_equal(away(), default) else "changed"
    except ERRORS as error:
        words = str(error).replace("-", "_")
        assert name in words, f"{option} is refused without its name: {error}"
        result = "refused"
    request.node.user_properties.append(("option", (surface, option, result)))
    assert result != "no effect", f"{option} has no effect on {surface} and is not refused"


def is_equal(a: Any, b: Any) -> bool:
    """Whether two results are equal, tensors bit by bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(is_equal, a, b))
    return bool(a == b)
