"""Components as plain data: by name, with the package that registered them, and back."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from support.registrations import temporary_registrations

import gidd
from gidd.common.config.codec import component_from_plain, object_from_plain, to_plain
from gidd.common.config.registry import KINDS, UNREGISTERED, builtin_components, register
from gidd.diffusion.schedules import Curve, Linear, MaskedSchedule, MixingSchedule
from gidd.errors import ComponentNotInstalled, ConfigError
from gidd.vocab import Vocab

VOCAB = Vocab(5, mask_id=4)


@dataclass(frozen=True)
class Options(MixingSchedule):
    """Every type of option that can be saved."""

    vocab: Vocab
    rate: float
    curve: Curve = Linear()
    places: tuple[int, ...] = (1, 2)
    mode: Literal["a", "b"] = "a"
    limit: int | None = None
    file: Path = Path("a")

    alpha = beta_pi = inflow = None  # pyright: ignore


@pytest.fixture(autouse=True)
def registered():
    with temporary_registrations():
        register("schedule", "mine")(Options)
        yield


PLAIN = {
    "kind": "mine",
    "package": __name__,
    "rate": 0.5,
    "curve": {"kind": "polynomial", "power": 3.0},
    "places": [4, 5],
    "mode": "b",
    "limit": 7,
    "file": "folder/b",
}


def test_a_part_is_its_name_its_package_and_its_options():
    chosen = component_from_plain("schedule", PLAIN, "noise")
    assert chosen.options["curve"].power == 3.0
    assert chosen.options["places"] == (4, 5)
    assert chosen.options["file"] == Path("folder/b")
    assert to_plain(chosen) == PLAIN


def test_an_object_has_the_plain_data_of_its_part():
    built = object_from_plain("schedule", PLAIN, "noise", vocab=VOCAB)
    assert type(built) is Options
    assert built.vocab is VOCAB  # saved beside it, not in it
    assert to_plain(built) == PLAIN


def test_parts_of_gidd_have_no_package():
    hybrid = gidd.component("schedule", "hybrid", p_uniform=0.2)
    assert to_plain(hybrid) == {"kind": "hybrid", "p_uniform": 0.2, "gamma": 1.0}
    assert to_plain(MaskedSchedule(VOCAB)) == {"kind": "masked", "curve": {"kind": "linear"}}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "corpus"])
def test_every_built_in_part_is_read_by_its_name(kind):
    """Corpora are named in a run, not saved as components."""
    for name in builtin_components(kind):
        try:
            chosen = component_from_plain(kind, {"kind": name}, "component")
        except ConfigError as error:
            assert "lacks" in str(error)  # an option without a default
        else:
            plain = to_plain(chosen)
            assert plain["kind"] == name
            if name != "self_correction":  # a function is one of its options
                assert component_from_plain(kind, plain, "component") == chosen


def test_options_that_a_file_lacks_have_their_defaults():
    """A version of a component that has one more option reads the files of the last one."""
    chosen = component_from_plain("schedule", {"kind": "mine", "rate": 1}, "noise")
    assert chosen == gidd.component("schedule", "mine", rate=1)


def test_options_without_a_default_must_be_in_the_file():
    with pytest.raises(ConfigError, match=r"noise .*lacks \['rate'\]"):
        component_from_plain("schedule", {"kind": "mine"}, "noise")


def test_unknown_options_are_refused_and_the_package_is_named():
    for package, named in (("some-package 2.0", "some-package 2.0"), ("", "gidd")):
        plain = PLAIN | {"package": package, "colour": 3}
        with pytest.raises(ConfigError, match=rf"noise .*'colour'.*another version of .?{named}"):
            component_from_plain("schedule", plain, "noise")


def test_what_the_library_supplies_is_not_read_from_the_part():
    with pytest.raises(ConfigError, match="'vocab'"):
        component_from_plain("schedule", PLAIN | {"vocab": {}}, "noise")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate", "0.5"),
        ("rate", True),
        ("places", 4),
        ("places", ["four"]),
        ("mode", "c"),
        ("limit", 7.5),
        ("file", 3),
        ("curve", "linear"),
        ("curve", {"kind": "hybrid"}),
        ("curve", {"kind": "polynomial", "power": -1}),
    ],
)
def test_values_of_another_type_are_refused(option, value):
    with pytest.raises(ConfigError, match=rf"noise\.{option}"):
        component_from_plain("schedule", PLAIN | {option: value}, "noise")


@pytest.mark.parametrize("plain", [None, "hybrid", [], 3, {}, {"kind": None}, {"kind": ["hybrid"]}])
def test_what_is_no_part_is_refused(plain):
    with pytest.raises(ConfigError, match="noise.* must be"):
        component_from_plain("schedule", plain, "noise")


def test_a_part_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="noise: schedule must be one of .*'dynamic'"):
        component_from_plain("schedule", {"kind": "dynamic"}, "noise")


@pytest.mark.parametrize("package", ["some-package 1.0", ["some-package 1.0"]])
def test_a_part_that_is_not_installed_is_told_from_a_damaged_file(package):
    plain = {"kind": "other", "package": package, "rate": 1}
    with pytest.raises(
        ComponentNotInstalled, match="noise: the schedule 'other'.*some-package 1.0"
    ):
        component_from_plain("schedule", plain, "noise")


def test_a_part_without_a_name_is_read_but_not_built():
    plain = {"kind": UNREGISTERED, "class": "Own"}
    unnamed = component_from_plain("schedule", plain, "noise")
    assert to_plain(unnamed) == plain
    with pytest.raises(ConfigError, match="noise: the schedule .*Own"):
        object_from_plain("schedule", plain, "noise", vocab=VOCAB)


@pytest.mark.slow
def test_no_file_imports_a_module(tmp_path):
    """Names and packages of components are compared with the registry, never imported."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    code = """
        import sys
        from gidd.common.config.codec import component_from_plain
        from gidd.common.config.registry import KINDS, find_component, component_names
        from gidd.training.recorded import run_from_plain
        from gidd.models.record import network_config_from, schedule_from

        for kind in KINDS:
            for name in component_names(kind):
                find_component(kind, name)
        imported = []
        sys.addaudithook(lambda event, args: event == "import" and imported.append(args[0]))
        for name in ("evil", "evil.Part", "evil:Part", "os.system", "gidd.cli"):
            for package in ("evil", "evil 1.0", "./evil.py", ""):
                plain = {"kind": name, "package": package, "class": "evil.Part"}
                readers = [
                    lambda kind=kind: component_from_plain(kind, plain, "x") for kind in KINDS
                ]
                readers.append(lambda: run_from_plain({"kind": "RunConfig", "backbone": plain}))
                sizes = {"vocab_size": 3, "max_length": 3}
                readers.append(lambda: network_config_from(plain | sizes, "x"))
                readers.append(lambda: schedule_from(plain, {}, None, "x"))
                for read in readers:
                    try:
                        read()
                    except ValueError:
                        continue
                    raise AssertionError(plain)
        assert not [name for name in imported if "evil" in name or "os" == name], imported
        print("refused", len(imported))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused 0\n"
