"""Print a script that completes commands, presets, options and their values in a shell.

Examples:
  gidd completion bash > ~/.local/share/bash-completion/completions/gidd
  gidd completion zsh > ~/.zfunc/_gidd      # a folder of $fpath
  gidd completion fish > ~/.config/fish/completions/gidd.fish
"""

import importlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Annotated, Literal

import tyro

from gidd.cli import COMMANDS
from gidd.cli.output import print_text
from gidd.cli.parsing import parse
from gidd.errors import GiddError

_SCRIPTS = {
    "bash": """\
_gidd() {
    local IFS=$'\\n'
    COMPREPLY=($(gidd completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null))
}
complete -o default -F _gidd gidd
""",
    "zsh": """\
#compdef gidd
local -a found
found=("${(@f)$(gidd completion words "${(@)words[2,CURRENT]}" 2> /dev/null)}")
if [[ -n "$found" ]]; then compadd -a found; else _files; fi
""",
    "fish": """\
function _gidd
    gidd completion words (commandline -opc)[2..] (commandline -ct) 2> /dev/null
end
complete --command gidd --arguments '(_gidd)'
""",
}
"""Shell: script. Each asks `gidd completion words` for the words that can be typed next."""

_OPTION = re.compile(
    r"(?:^|\s\s|│ )(?:-h, )?(--[a-z][\w.-]*)(?:, (--[a-z][\w.-]*))?(?: \{([\w,.-]+)\}| (\S))?", re.M
)
"""An option in a help text, its negation, and its choices or the begin of another value."""


def main(arguments: Sequence[str]) -> None:
    """Print a script, or for `words WORD...` what the last word may become."""
    if arguments[:1] == ["words"]:
        *before, current = arguments[1:] or [""]
        matching = (word for word in next_words(before, current) if word.startswith(current))
        print_text("\n".join(matching))
        return

    def completion(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]) -> None:
        """Print the script.

        Args:
            shell: Shell that the script is for.
        """
        print_text(_SCRIPTS[shell].rstrip())

    parse(completion, arguments, prog="gidd completion", description=__doc__)


def next_words(before: Sequence[str], current: str) -> Iterable[str]:
    """Return the words that may follow; none where a file or a value of the user is expected."""
    if not before:
        return COMMANDS
    if len(before) == 1 and not current.startswith("-"):
        return _subcommands(before[0])
    option = before[-1] if before[-1].startswith("--") else ""
    text = _help([*before[:-1], *([] if option else before[-1:])])
    rows = [match.groups() for match in _OPTION.finditer(text)]
    for name, _, choices, value in rows:
        if name == option and (choices or value):
            return choices.split(",") if choices else ()
    names = (name for row in rows for name in row[:2] if name)
    return names if current.startswith("-") else ()


def _subcommands(command: str) -> Iterable[str]:
    """Return what the first argument of a command can be, if it is one of several names."""
    from gidd.cli.eval import EVALUATIONS
    from gidd.runs.presets import PRESETS

    if command in ("train", "plan"):
        return PRESETS
    if command == "eval":
        return EVALUATIONS
    usage = re.search(r"^usage: .*?\{([\w,-]+)\}", _help([command]), re.M)
    return usage[1].split(",") if usage else ()


def _help(words: Sequence[str]) -> str:
    """Return what a command prints for --help after these words."""
    if not words or words[0] not in COMMANDS:
        return ""
    os.environ["COLUMNS"] = "1000"  # an option and its choices are one line
    command = importlib.import_module(f"gidd.cli.{words[0]}").main
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors), suppress(SystemExit, GiddError):
        command([*words[1:], "--help"])
    return printed.getvalue()
