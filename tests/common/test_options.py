"""The options of a component: declared once, by the component itself."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from support.registrations import temporary_registrations

from gidd.common.config.options import REQUIRED, options_of
from gidd.common.config.registry import KINDS, builtin_components, register
from gidd.diffusion.schedules import Curve, Linear, MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ComponentNotInstalled, ConfigError


@pytest.fixture(autouse=True)
def forgotten():
    with temporary_registrations():
        yield


@dataclass(frozen=True)
class Parent(MixingSchedule):
    vocab: Any
    rate: float
    """Of the parent."""

    places: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    """Where,
    in two lines."""

    hidden: int = field(default=3, init=False)


@dataclass(frozen=True)
class Child(Parent):
    rate: float = 0.5
    """Of the child."""

    mode: Literal["a", "b"] | None = None


def step(schedule, s, t, state, predict, *, first, second: "int | None" = 2, **more: int):
    """A step.

    Args:
        schedule: Noise.
        first: Has no type
            and a help of two lines.
        second: Has a type.

    Returns:
        second: not this one.
    """


def test_options_of_a_dataclass_are_its_fields():
    register("schedule", "mine")(Child)
    options = options_of("schedule", "mine")
    assert list(options) == ["rate", "places", "mode"]
    assert options["rate"][:4] == ("rate", float, 0.5, "Of the child.")
    assert options["places"][:4] == ("places", tuple[int, ...], (1, 2), "Where,\nin two lines.")
    assert options["mode"].hint == Literal["a", "b"] | None
    assert options["mode"].help == ""


def test_options_of_a_function_are_its_parameters():
    register("step", "mine")(step)
    options = options_of("step", "mine")
    assert list(options) == ["first", "second"]
    assert options["first"][:4] == ("first", Any, REQUIRED, "Has no type and a help of two lines.")
    assert options["second"][:4] == ("second", int | None, 2, "Has a type.")


def test_options_of_a_class_that_builds_a_step_are_those_of_its_constructor():
    class Step:
        """A step.

        Args:
            width: Of something.
        """

        def __init__(self, width: int = 3) -> None: ...

        def __call__(self, schedule, s, t, state, predict): ...

    register("step", "mine")(Step)
    (option,) = options_of("step", "mine").values()
    assert option[:4] == ("width", int, 3, "Of something.")


@pytest.mark.parametrize("header", ["", "from __future__ import annotations\n"])
def test_a_part_may_be_defined_where_there_is_no_source(header):
    """As at a prompt: types are found, help is not."""
    code = header + (
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from gidd.diffusion.weighting import Weighting\n"
        "@dataclass(frozen=True)\n"
        "class Typed(Weighting):\n"
        "    power: float = 2.0\n"
        "    def __call__(self, t, x, z): ...\n"
        "def step(schedule, s, t, state, predict, *, file: Path = Path('a')): ...\n"
    )
    namespace: dict[str, Any] = {}  # its functions are of the module builtins
    exec(code, namespace)
    register("step", "mine")(namespace["step"])
    register("weighting", "mine")(namespace["Typed"])
    from pathlib import Path

    assert options_of("step", "mine")["file"][:4] == ("file", Path, Path("a"), "")
    assert options_of("weighting", "mine")["power"][:4] == ("power", float, 2.0, "")


def test_default_factories_are_called_for_every_use():
    register("schedule", "mine")(Parent)
    assert options_of("schedule", "masked")["curve"].default == Linear()
    assert options_of("schedule", "masked")["curve"].hint is Curve
    assert options_of("schedule", "mine")["rate"].default is REQUIRED


@pytest.mark.parametrize("name", ["kind", "package"])
def test_an_option_has_no_name_that_saved_parts_use(name):
    namespace: dict[str, Any] = {}
    exec(f"def step(schedule, s, t, state, predict, {name}=1): ...", namespace)
    register("step", "mine")(namespace["step"])
    with pytest.raises(ConfigError, match=f"step 'mine' has an option '{name}'"):
        options_of("step", "mine")


def test_unknown_parts_have_no_options():
    with pytest.raises(ConfigError, match="schedule must be one of"):
        options_of("schedule", "mine")
    with pytest.raises(ComponentNotInstalled, match="some-package"):
        options_of("schedule", "mine", "some-package 1.0")


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in builtin_components(kind)]
)
def test_every_option_of_a_built_in_part_has_a_type_and_a_help(kind, name):
    if kind == "corpus":
        assert options_of(kind, name) == {}  # a corpus is an object
    for option in options_of(kind, name).values():
        assert option.hint is not Any, option.name
        assert option.help, option.name


def test_weightings_have_no_option_for_the_schedule():
    assert "schedule" not in options_of("weighting", "clamp")
    assert issubclass(builtin_components("weighting")["clamp"], Weighting)
