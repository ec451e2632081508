"""Commands in README and docs: their options exist, and the tour of README prints what it says."""

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from gidd.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.M | re.S)
COMPONENTS = ("--noise", "--weighting", "--objective", "--backbone", "--optimizer", "--sampler")
COMPONENTS += ("--final-corrector", "--metric", "--parallel")


def documented() -> list[tuple[str, str]]:
    """Return the commands `gidd ...` of all shell blocks, with their page."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.search(r"(?:^|&& |; |\| )(?:gidd|.*-m gidd\.cli) (.*)", line)
                if command and command[1].split()[0] in COMMANDS:
                    found.append((str(page.relative_to(ROOT)), command[1]))
    return found


@cache
def help_of(arguments: tuple[str, ...]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    return text.getvalue()


def words_of(command: str) -> list[str]:
    """Return the arguments of a command, without what follows a pipe or a redirection."""
    if command.count('"') % 2:  # the text goes on in the next line
        command += '"'
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in lexer:
        if re.fullmatch(r"[|<>&;]+", word):
            break
        words.append(word)
    return words


@pytest.mark.parametrize(("page", "command"), documented())
def test_a_documented_command_has_its_options(page, command):
    words = words_of(command)
    path = tuple(words[: 1 + (len(words) > 1 and words[0] in ("train", "eval", "data"))])
    if path[-1].endswith((".yaml", "...")) or path[-1].isupper():
        path = ("train", "nano")
    chosen = [
        part
        for i, word in enumerate(words[:-1])
        if word in COMPONENTS
        for part in (word, words[i + 1])
    ]
    text = help_of((*path, *chosen)) or help_of(path)  # a component of an example's package
    options = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
    missing = [
        option for option in options if not re.search(rf"{re.escape(option)}(?![\w-])", text)
    ]
    assert text and not missing, f"{page}: gidd {command}: no {', '.join(missing)}"
