"""Every package says what is in it, and variables are nouns. Import-linter checks imports."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "gidd"
FOLDERS = [SRC, *ROOT.glob("packages/*/src"), ROOT / "benchmarks", ROOT / "examples"]


def test_every_package_has_a_docstring():
    for path in SRC.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_variables_are_named_by_nouns_of_the_program():
    words = {"found", "own", "one", "what", "each", "number"}
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    assert name not in words, f"{path}:{node.lineno}: name what {name!r} holds"
