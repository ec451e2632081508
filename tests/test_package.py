"""The package as a user meets it: lean imports, and a README whose code runs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.registrations import temporary_registrations

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

IMPORT_EVERYTHING = '''
import importlib, pkgutil, sys

class Without:
    """A finder that finds no blocked package, as if it were not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {blocked!r}:
            return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
import gidd
for module in pkgutil.walk_packages(gidd.__path__, "gidd."):
    if module.name.startswith(("gidd.diffusion.kernels.", "gidd.serving.")):
        continue  # the extras `gpu` and `serve` are for them
    importlib.import_module(module.name)
    print(module.name)
'''


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", line).group().lower() for line in requirements}


@pytest.mark.slow
def test_every_module_imports_with_the_base_dependencies_alone():
    """Everything that an extra would install is hidden from the import system."""
    extras = set().union(*map(names, PROJECT["optional-dependencies"].values()))
    blocked = extras - names(PROJECT["dependencies"]) - {"gidd"}
    blocked = {name.replace("-", "_") for name in blocked} | {"importlinter", "codespell_lib"}
    assert "jaxtyping" in blocked
    code = IMPORT_EVERYTHING.format(blocked=blocked)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "gidd.diffusion.elbo" in result.stdout.split()


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_code_in_the_documents_runs_and_prints_what_it_says(path, capsys, tmp_path, monkeypatch):
    """Blocks of one page run in order, in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    with temporary_registrations():
        for block in code_blocks(path):
            exec(compile(block, str(path), "exec"), namespace)
            printed = capsys.readouterr().out.splitlines()
            if expected := re.findall(r"# prints: (.*)", block):
                assert printed == expected


def test_the_readme_has_code():
    assert any("# prints: " in block for block in code_blocks(ROOT / "README.md"))
