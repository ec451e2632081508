"""`Component`: the name of a component, with a value for each of its options."""

from dataclasses import dataclass
from typing import Any

import pytest
from support.registrations import temporary_registrations

import gidd
from gidd.common.config.components import Component, component_of
from gidd.common.config.registry import UNREGISTERED, register
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ConfigError
from gidd.sampling.steps import Threshold, ancestral
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)


@dataclass(frozen=True)
class Scaled(Weighting):
    factor: float
    p_uniform: float = 1.0

    def __call__(self, t, x, z): ...


@pytest.fixture(autouse=True)
def scaled():
    with temporary_registrations():
        register("weighting", "scaled")(Scaled)
        yield


def test_options_that_are_not_given_have_their_defaults():
    hybrid = gidd.component("schedule", "hybrid", gamma=0.5)
    assert hybrid.options == {"p_uniform": 0.1, "gamma": 0.5}
    assert hybrid == Component("schedule", "hybrid", {"p_uniform": 0.1, "gamma": 0.5})
    assert hybrid != gidd.component("schedule", "hybrid")


def test_required_options_must_be_given():
    with pytest.raises(ConfigError, match="weighting scaled needs factor"):
        gidd.component("weighting", "scaled")
    assert gidd.component("weighting", "scaled", factor=2.0).options["factor"] == 2.0


def test_unknown_options_come_with_a_hint():
    with pytest.raises(ConfigError, match="schedule hybrid has no option 'p_unifrom'.*p_uniform"):
        gidd.component("schedule", "hybrid", p_unifrom=0.2)
    with pytest.raises(ConfigError, match="step ancestral has no option 'fill'.*no options"):
        gidd.component("step", "ancestral", fill=0.5)
    with pytest.raises(ConfigError, match="has no option 'vocab'"):  # the library supplies it
        gidd.component("schedule", "hybrid", vocab=VOCAB)


def test_unknown_parts_come_with_a_hint():
    with pytest.raises(ConfigError, match="schedule must be one of .*hybrib.*Did you mean hybrid"):
        gidd.component("schedule", "hybrib")


def test_changed_keeps_the_other_options():
    hybrid = gidd.component("schedule", "hybrid", gamma=0.5)
    assert hybrid.changed(p_uniform=0.2).options == {"p_uniform": 0.2, "gamma": 0.5}
    assert hybrid.options["p_uniform"] == 0.1
    with pytest.raises(ConfigError, match="no option 'width'"):
        hybrid.changed(width=3)


def test_renamed_keeps_the_options_that_both_have():
    hybrid = gidd.component("schedule", "hybrid", p_uniform=0.3, gamma=0.5)
    assert hybrid.renamed("hybrid") is hybrid
    assert hybrid.renamed("first_release").options["p_uniform"] == 0.3
    assert "p_uniform" not in hybrid.renamed("masked").options
    with pytest.raises(ConfigError, match="schedule must be one of"):
        hybrid.renamed("dynamic")


def test_classes_are_built_with_options_and_what_the_library_supplies():
    built = gidd.component("schedule", "hybrid", p_uniform=0.3).build(vocab=VOCAB)
    assert built == HybridSchedule(VOCAB, p_uniform=0.3)
    weighting = gidd.component("weighting", "scaled", factor=2.0).build(schedule=built)
    assert weighting == Scaled(built, 2.0)


def test_steps_are_called_later():
    assert gidd.component("step", "ancestral").build() is ancestral
    assert gidd.component("step", "threshold", fill=0.5).build() == Threshold(fill=0.5)

    def own(schedule, s, t, state, predict, *, width: int = 3): ...

    register("step", "own")(own)
    built = gidd.component("step", "own", width=5).build()
    assert (built.func, built.keywords) == (own, {"width": 5})


def test_problems_are_those_that_the_part_reports():
    assert list(gidd.component("schedule", "hybrid").problems()) == []
    (problem,) = gidd.component("schedule", "hybrid", p_uniform=1.5).problems()
    assert problem.startswith("p_uniform must be in [0, 1), got 1.5")
    assert list(gidd.component("weighting", "scaled", factor=-1.0).problems()) == []  # reports none


def test_the_part_of_an_object_is_found_by_its_class():
    options: dict[str, Any] = {"p_uniform": 0.3, "gamma": 1.0}
    found = component_of("schedule", HybridSchedule(VOCAB, 0.3), options)
    assert found == gidd.component("schedule", "hybrid", p_uniform=0.3)


def test_objects_without_a_name_are_recorded_and_cannot_be_built():
    class Own(MaskedSchedule): ...  # a subclass of a component is not the component

    for kind, value in (("schedule", Own(VOCAB)), ("weighting", HybridSchedule(VOCAB))):
        unnamed = component_of(kind, value, {})
        assert (unnamed.name, list(unnamed.problems())) == (UNREGISTERED, [])
        with pytest.raises(ConfigError, match=rf"{type(value).__name__}.*register\(\"{kind}\""):
            unnamed.build(vocab=VOCAB)
