"""Packages whose exports are imported on first use."""

import importlib
import subprocess
import sys

import pytest

NAMES = ("diffusion", "models", "pipeline", "runs", "sampling", "training", "viz")
PACKAGES = ["gidd", *(f"gidd.{name}" for name in NAMES)]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `lazy_package` that exports `value` from its module `heavy`."""
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "heavy.py").write_text("value = [1]\nhidden = 2\n")
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from gidd.common.lazy import lazy_exports\n"
        "if TYPE_CHECKING:\n    from lazy_package.heavy import value as value\n"
        "__getattr__, __dir__ = lazy_exports(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_package")
    for name in ("lazy_package", "lazy_package.heavy"):
        sys.modules.pop(name, None)


def test_an_export_is_imported_on_first_use(package):
    assert "lazy_package.heavy" not in sys.modules
    assert package.value == [1]
    assert package.value is sys.modules["lazy_package.heavy"].value
    assert "value" in vars(package)


def test_from_import_finds_exports_and_submodules(package):
    from lazy_package import heavy, value

    assert value is heavy.value


def test_unknown_names_raise_attribute_error(package):
    with pytest.raises(AttributeError, match=r"'lazy_package' has no attribute 'hidden'"):
        package.hidden  # noqa: B018
    assert not hasattr(package, "heavy")


def test_dir_lists_the_exports_before_they_are_imported(package):
    assert "value" in dir(package)
    assert "__name__" in dir(package)
    assert "TYPE_CHECKING" not in dir(package)
    assert package.__all__ == ["value"]
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
