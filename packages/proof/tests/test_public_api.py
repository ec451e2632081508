"""The product imports the public API of gidd only: `gidd` and the doors of its packages."""

import ast
from pathlib import Path

import gidd_proof
import pytest

FILES = sorted(Path(gidd_proof.__file__).parent.glob("*.py"))


def imported_modules(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_doors_are_imported(path):
    """gidd.x is a door; gidd.x.y is a module below it, and gidd.common has no door."""
    for module in imported_modules(path):
        first, *rest = module.split(".")
        if first == "gidd":
            assert len(rest) <= 1 and rest != ["common"], f"{path.name} imports {module}"
