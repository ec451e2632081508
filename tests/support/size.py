"""Count the source: files, lines and lines of code per package (`make size`).

A line of code is a line with a token that is not part of a docstring, an import statement, a
comment or a blank line.
"""

import argparse
import ast
import io
import json
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return the number of lines of code of a file."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_not_code(ast.parse(source))))


def _not_code(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of import statements and of strings that stand alone (docstrings)."""
    for node in ast.walk(tree):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_import or is_text:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def sizes(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return (files, lines, lines of code) of each package of a source tree."""
    found: dict[str, tuple[int, int, int]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        inside = path.relative_to(folder).parts
        package = inside[0] if len(inside) > 1 else "(top level)"
        files, lines, code = found.get(package, (0, 0, 0))
        found[package] = files + 1, lines + source.count("\n"), code + code_lines(source)
    return found


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="source trees to count")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    folders = options.folders or [ROOT / "src/gidd", *sorted(ROOT.glob("packages/*/src/*"))]
    tables = {folder.name: sizes(folder) for folder in folders}
    if options.json:
        print(json.dumps(tables))
        return
    for name, table in tables.items():
        print(f"{name:<16}{'files':>8}{'lines':>8}{'code':>8}")
        totals = [sum(column) for column in zip(*table.values(), strict=True)]
        for package, counts in [*table.items(), ("total", totals)]:
            print(f"{package:<16}" + "".join(f"{count:>8,}" for count in counts))
        print()


if __name__ == "__main__":
    main()
