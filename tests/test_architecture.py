"""Every package says what is in it. Import-linter checks the order of imports (`make check`)."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "gidd"


def test_every_package_has_a_docstring():
    for path in SRC.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
