"""What the annotation of a field says about its values, and who reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from support.registrations import temporary_registrations

import gidd
from gidd.common.config.allowed import integer, number, problems_of, require_allowed
from gidd.common.config.registry import register
from gidd.errors import ConfigError, DataError

_RATE = number(lambda rate: 0 <= rate < 1, "in [0, 1)", "0 is common.")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    width: Annotated[int, integer(1, 64)] = 8
    rate: Annotated[float, _RATE] | None = None
    kind: Literal["small", "large"] = "small"
    size: Literal[1, 2] | None = None
    name: str = ""
    counts: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class LargerSizes(Sizes):
    width: int = 32  # another default

    def problems(self):
        if self.kind == "small":
            yield "kind must be large."


@pytest.mark.parametrize(
    "value, names",
    [
        (Sizes(), []),
        (Sizes(rate=0.5, size=1, counts=-1), []),
        (Sizes(width=65, rate=1.0), ["part.width", "part.rate"]),
        (Sizes(width=True, rate=False), ["part.width", "part.rate"]),
        (Sizes(kind="middle", size=3), ["part.kind", "part.size"]),
        (LargerSizes(kind="large"), []),
        (LargerSizes(width=0, rate=-0.1), ["part.width", "part.rate", "kind"]),
    ],
)
def test_a_message_names_each_field_that_is_out_of_its_range(value, names):
    assert [problem.split()[0] for problem in problems_of(value, "part.")] == names


def test_a_message_has_the_value_the_range_and_what_to_do():
    (problem,) = problems_of(Sizes(rate=1.5))
    assert problem == "rate must be a number in [0, 1), got 1.5. 0 is common."


def test_all_problems_are_raised_at_once():
    with pytest.raises(ConfigError, match=r"(?s)width .* 64, got 0.*size must be one of 1, 2, got"):
        require_allowed(Sizes(width=0, size=4))
    with pytest.raises(DataError, match="width"):
        require_allowed(Sizes(width=0), DataError)


def test_options_of_components_have_the_ranges_of_their_annotations():
    def step(*, width: Annotated[int, integer(1)] = 1): ...

    @dataclass(frozen=True)
    class Corrector:
        rate: Annotated[float, _RATE] = 0.5

    @dataclass(frozen=True)
    class SlowCorrector(Corrector):
        rate: float = 0.1

    with temporary_registrations():
        register("step", "wide")(step)
        register("corrector", "slow")(SlowCorrector)
        (problem,) = gidd.component("step", "wide", width=0).problems()
        assert problem.startswith("width must be an integer of at least 1")
        (problem,) = gidd.component("corrector", "slow", rate=1.0).problems()
        assert problem.startswith("rate must be a number in [0, 1), got 1.0")
