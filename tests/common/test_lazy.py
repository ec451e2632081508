"""Packages whose exports are imported on first use."""

import importlib
import subprocess
import sys
import textwrap

import pytest

NAMES = ("diffusion", "models", "pipeline", "runs", "sampling", "training", "viz")
FOLDERS_OF_COMPONENTS = (
    "gidd.diffusion.schedules",
    "gidd.sampling.steps",
    "gidd.sampling.correctors",
)
PACKAGES = ["gidd", *(f"gidd.{name}" for name in NAMES), *FOLDERS_OF_COMPONENTS]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that exports `value` from its module `heavy` and `same` from its module `same`."""
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "heavy.py").write_text("value = [1]\nhidden = 2\n")
    (folder / "same.py").write_text("def same(): ...\n")
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from gidd.common.lazy import lazy_exports\n"
        "if TYPE_CHECKING:\n"
        "    from lazy_package.heavy import value as value\n"
        "    from lazy_package.same import same as same\n"
        "__getattr__, __dir__ = lazy_exports(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_package")
    for name in ("lazy_package", "lazy_package.heavy", "lazy_package.same"):
        sys.modules.pop(name, None)


def test_an_export_is_imported_on_first_use(package):
    assert "lazy_package.heavy" not in sys.modules
    assert package.value == [1]
    assert package.value is sys.modules["lazy_package.heavy"].value
    assert "value" in vars(package)


def test_from_import_finds_exports_and_submodules(package):
    from lazy_package import heavy, value

    assert value is heavy.value


def test_an_export_wins_over_its_module_of_the_same_name(package):
    module = importlib.import_module("lazy_package.same")
    from lazy_package import same

    assert same is package.same is module.same


def test_unknown_names_raise_attribute_error(package):
    with pytest.raises(AttributeError, match=r"'lazy_package' has no attribute 'hidden'"):
        package.hidden  # noqa: B018
    assert not hasattr(package, "heavy")


def test_dir_lists_the_exports_before_they_are_imported(package):
    assert "value" in dir(package)
    assert "__name__" in dir(package)
    assert "TYPE_CHECKING" not in dir(package)
    assert package.__all__ == ["same", "value"]
    assert "lazy_package.heavy" not in sys.modules


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_lazy_package_does_not_import_torch(name):
    code = f"import sys, {name}; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_export_of_a_lazy_package_exists(name):
    package = importlib.import_module(name)
    assert package.__all__
    for export in package.__all__:
        assert getattr(package, export) is not None


@pytest.mark.parametrize("name", FOLDERS_OF_COMPONENTS)
def test_every_named_part_is_an_export(name):
    package = importlib.import_module(name)
    assert package.COMPONENTS
    assert set(package.COMPONENTS.values()) <= set(package.__all__)


@pytest.mark.slow
def test_schedules_and_weightings_are_defined_without_torch():
    """Help texts read the options of a class; only its use needs torch."""
    code = """
        import importlib, pkgutil, sys
        from typing import get_type_hints

        from gidd.common.config.registry import builtin_components
        from gidd.diffusion import schedules, weighting

        for module in pkgutil.iter_modules(schedules.__path__, f"{schedules.__name__}."):
            importlib.import_module(module.name)
        for kind in ("schedule", "curve", "amount", "weighting"):
            for component in builtin_components(kind).values():
                get_type_hints(component)
        assert "torch" not in sys.modules, "torch was imported"

        from gidd.vocab import Vocab

        schedule = schedules.HybridSchedule(Vocab(5, mask_id=4), p_uniform=0.2)
        assert weighting.TightWeighting(schedule).schedule is schedule
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
