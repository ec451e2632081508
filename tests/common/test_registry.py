"""Components by name: what may be registered, and how it is found."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import partial

import pytest
from support.registrations import temporary_registrations

import gidd
from gidd.common.config.registry import (
    KINDS,
    builtin_components,
    component_names,
    find_component,
    kind_of_base,
    name_of,
    register,
)
from gidd.data.corpora import Corpus, named_corpus
from gidd.diffusion.schedules import Curve, HybridSchedule, MaskedSchedule, MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ComponentNotInstalled, ConfigError


@pytest.fixture(autouse=True)
def forgotten():
    with temporary_registrations():
        yield


def step(schedule, s, t, state, predict):
    """A function that is good enough for a step."""


def module_of(name: str):
    """A function of another module."""
    function = partial(step)
    function.__module__ = name
    return function


@dataclass(frozen=True)
class Sizes:
    vocab_size: int
    max_length: int

    def build(self): ...


@pytest.mark.parametrize("kind", KINDS)
def test_built_in_parts_are_found_by_name_and_named_by_object(kind):
    for name, component in builtin_components(kind).items():
        assert find_component(kind, name) == (component, "")
        if kind not in ("corpus", "importer"):  # objects, not classes
            assert name_of(component) == (kind, name, "")


def test_a_registered_part_is_found_listed_last_and_named():
    assert gidd.register("step", "mine")(step) is step
    assert find_component("step", "mine") == (step, __name__)
    assert component_names("step") == [*builtin_components("step"), "mine"]
    assert name_of(step) == ("step", "mine", __name__)


def test_names_of_one_kind_do_not_exclude_those_of_another():
    register("step", "mine")(step)
    register("corrector", "mine")(step)
    register("corrector", "ancestral")(step)
    assert find_component("corrector", "ancestral").make is step


def test_objects_that_are_not_registered_have_no_name():
    assert name_of(step) is None
    assert name_of("ancestral") is None

    class HybridSchedule: ...  # the name of a class is not enough

    assert name_of(HybridSchedule) is None


def test_a_registered_corpus_is_built_when_it_is_used():
    @register("corpus", "mine")
    class Mine(Corpus):
        name = "mine"
        description = "mine"

        def documents(self):
            return []

    assert isinstance(named_corpus("mine"), Mine)
    assert named_corpus("sotu").name == "sotu"


@pytest.mark.parametrize(
    "name", ["", "Mine", "my component", "1st", "-mine", "mine-", "a--b", "mïne"]
)
def test_names_are_words_of_small_letters(name):
    with pytest.raises(ConfigError, match="name of a step"):
        register("step", name)


@pytest.mark.parametrize("name", [None, 3, step])
def test_a_name_is_a_string(name):
    with pytest.raises(ConfigError, match="name of a step"):
        register("step", name)


def test_the_word_for_parts_without_a_name_is_no_name():
    with pytest.raises(ConfigError, match="unregistered"):
        register("step", "unregistered")


@pytest.mark.parametrize("call", [partial(register, name="mine"), component_names])
def test_kinds_are_known_ones(call):
    with pytest.raises(
        ConfigError, match="kind must be one of schedule, .*corpus.*, got 'sampler'"
    ):
        call("sampler")


def test_a_name_of_gidd_cannot_be_taken():
    with pytest.raises(ConfigError, match="step 'ancestral' in gidd"):
        register("step", "ancestral")(step)


def test_a_name_of_another_module_cannot_be_taken():
    register("step", "mine")(module_of("one"))
    with pytest.raises(ConfigError, match="step 'mine' in one"):
        register("step", "mine")(module_of("other"))
    assert find_component("step", "mine").package == "one"


def test_the_same_module_may_register_a_name_again():
    """As a cell of a notebook does that is run twice."""
    first, second = module_of("notebook"), module_of("notebook")
    for function in (first, second):
        register("step", "mine")(function)
    assert find_component("step", "mine").make is second
    assert name_of(first) is None


@pytest.mark.parametrize(
    ("kind", "make", "base"),
    [
        ("schedule", step, "gidd.diffusion.schedules.MixingSchedule"),
        ("schedule", Sizes, "gidd.diffusion.schedules.MixingSchedule"),
        ("curve", MixingSchedule, "gidd.diffusion.schedules.Curve"),
        ("amount", Curve, "gidd.diffusion.schedules.NoiseAmount"),
        ("weighting", dict, "gidd.diffusion.weighting.Weighting"),
        ("corpus", "text.txt", "class or function"),
        ("corpus", list, "gidd.data.corpora.Corpus"),
        ("step", 3, "class or function"),
    ],
)
def test_parts_have_the_base_class_of_their_kind(kind, make, base):
    with pytest.raises(ConfigError, match=f"{kind} 'mine' must be .*{base}"):
        register(kind, "mine")(make)
    assert "mine" not in component_names(kind)


def test_parts_that_are_saved_are_dataclasses():
    """The fields are what a file says of them; the decorators may be in the wrong order."""

    class Plain(MixingSchedule):
        def __init__(self, vocab, rate=1.0): ...

    class Build:
        def build(self): ...

    for kind, make in (("schedule", Plain), ("backbone", Build)):
        with pytest.raises(ConfigError, match=f"{kind} 'mine' .*dataclass"):
            register(kind, "mine")(make)


def test_a_backbone_has_a_build():
    @dataclass
    class Network:
        vocab_size: int
        max_length: int

    for make in (Network, step):
        with pytest.raises(ConfigError, match="backbone 'mine' .*build"):
            register("backbone", "mine")(make)
    assert register("backbone", "mine")(Sizes) is Sizes


def test_unknown_names_come_with_a_hint():
    with pytest.raises(ConfigError, match="step must be one of .* got 'ancestal'.*ancestral"):
        find_component("step", "ancestal")
    register("step", "left-to-right")(step)
    with pytest.raises(ConfigError, match="Did you mean left-to-right"):
        find_component("step", "left_to_right")
    with pytest.raises(ConfigError, match="got 'zzz'. *$"):
        find_component("step", "zzz")


@pytest.mark.parametrize("name", [None, 3, ["ancestral"], {}])
def test_a_name_in_a_file_may_be_anything(name):
    with pytest.raises(ConfigError, match="step must be one of"):
        find_component("step", name)


def test_the_package_of_a_missing_part_is_named():
    with pytest.raises(
        ComponentNotInstalled, match="step 'mine' is not installed.*'some-package 1.0'"
    ):
        find_component("step", "mine", "some-package 1.0")


def test_classes_are_parts_of_the_kind_of_their_base():
    assert kind_of_base(MixingSchedule) == "schedule"
    assert kind_of_base(Weighting) == "weighting"
    assert kind_of_base(Curve) == "curve"
    for other in (MaskedSchedule, HybridSchedule, int, None):
        assert kind_of_base(other) is None


def test_plugins_are_imported_only_for_names_that_gidd_does_not_have():
    code = """
        from gidd.common.config import registry

        registry._load_plugins = lambda: print("loaded")
        registry.find_component("schedule", "hybrid")
        print("found")
        try:
            registry.find_component("schedule", "drifting")
        except ValueError:
            print("not found")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    assert printed[:2] == ["found", "loaded"]
    assert "not found" in printed
