"""The layout: one name for one thing, files that can be read at one go.

The order of imports is checked by import-linter (`make check`, contracts in pyproject.toml).
"""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "gidd"
MODULES = sorted(SRC.rglob("*.py"))
MAX_LINES = 320

INTENDED = {
    "PARTS": "the built-in parts of a kind by name, found by `gidd.common.registry`",
    "main": "the entry point of every command: `gidd.cli.COMMAND.main(arguments)`",
    "matches": "whether a checkpoint has the layout: `gidd.models.importers.LAYOUT.matches`",
    "read": "load a checkpoint of the layout: `gidd.models.importers.LAYOUT.read`",
}
"""Public names that several modules define, with the reason."""


def public_names(path: Path) -> set[str]:
    """Names of classes, functions and constants that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_is_defined_twice():
    defined: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in public_names(path):
            defined[name].append(str(path.relative_to(SRC)))
    collisions = {name: files for name, files in defined.items() if len(files) > 1}
    assert collisions.keys() == INTENDED.keys(), {
        name: files for name, files in collisions.items() if name not in INTENDED
    }


def test_files_can_be_read_at_one_go():
    lengths = {str(path.relative_to(SRC)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_every_package_says_what_is_in_it():
    """The docstring of a package is its reading order."""
    for path in SRC.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
