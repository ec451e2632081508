"""What the annotation of a field says about its values, and who reads it."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from support.registrations import temporary_registrations

import gidd
from gidd.common.config.allowed import (
    allowed_in,
    integer,
    number,
    problems_of,
    require_allowed,
)
from gidd.common.config.options import options_of
from gidd.common.config.registry import KINDS, component_names, register
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


def is_number(hint: Any) -> bool:
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(map(is_number, get_args(hint)))
    return hint in (int, float)


CHECKED_ELSEWHERE = {
    "DataConfig.tokenizer",  # a number of tokens or a name
    "DataConfig.validation",  # a number of documents or a fraction
    "DiffusionGemmaConfig.bos_id",  # of a checkpoint, by transformers
    "DiffusionGemmaConfig.canvas_length",
    "DiffusionGemmaConfig.max_length",
    "DiffusionGemmaConfig.num_layers",
    "DiffusionGemmaConfig.vocab_size",
    "LoaderConfig.pad_id",  # a token of the vocabulary
    "RunConfig.context",  # set by the run
}
ENDS = ("Options", "Command", "Config", "Limits", "Job", "Assumptions", "Request")


def option_classes() -> list[type]:
    """Dataclasses of options: of commands, runs, evaluations, the service and networks."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(gidd.__path__, "gidd."):
        if "__main__" not in module.name:
            try:
                members = vars(importlib.import_module(module.name))
            except ImportError:  # of an extra that is not installed
                continue
            names = [name for name in members if name.endswith(ENDS)]
            found |= {name: members[name] for name in names if is_dataclass(members[name])}
    return list(found.values())


@pytest.mark.slow
def test_every_number_among_the_options_has_a_range():
    classes = option_classes()
    assert len(classes) > 30
    missing = {
        f"{kind.__name__}.{field.name}"
        for kind in classes
        for hints in [get_type_hints(kind)]
        for field in fields(kind)
        if is_number(hints[field.name]) and field.name not in allowed_in(kind)
    }
    missing |= {
        f"{kind} {name}.{option.name}"
        for kind in KINDS
        for name in component_names(kind)
        for option in options_of(kind, name).values()
        if is_number(option.hint) and option.allowed is None
    }
    assert not missing - CHECKED_ELSEWHERE
