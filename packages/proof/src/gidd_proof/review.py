"""Review of doubtful places in the terminal, one key each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from gidd.cli import line_starts, percent, place_of, plain
from gidd.errors import ConfigError
from gidd.pipeline import Alternative, Correction, TextEdit, apply_edits

_CONTEXT = 120
"""Characters that are shown on either side of a place."""

_MAX_SHOWN, _LEAST_SHOWN = 9, 1e-4
"""Number of alternatives that are listed, and their least probability."""

_KEYS = "a accept  1-9 choose  r reject  e edit  s skip the rest of the text"


def require_terminal() -> None:
    """Raise `ConfigError` if nobody can press keys or see the questions."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "--interactive needs a terminal, and standard input or stderr is not one. Use "
            "--suggest to get all alternatives as JSON lines."
        )


def review(
    name: str,
    correction: Correction,
    *,
    read_key: Callable[[], str] | None = None,
    read_line: Callable[[str], str] | None = None,
) -> Correction:
    """Ask about every doubtful place, and return the correction as decided.

    Places that are not decided stay as they are.
    """
    console = Console(stderr=True, highlight=False)
    starts, edits = line_starts(correction.original), list[TextEdit]()
    is_open = True
    for index, edit in enumerate(correction.edits, start=1):
        chosen: str | None = edit.old
        if is_open:
            line, _ = place_of(starts, edit.start)
            console.print(Text(f"\n{name}:{line}  {index:,} of {len(correction.edits):,}", "dim"))
            _show(console, correction.original, edit)
            chosen = _ask(edit, read_key or press_key, read_line or edit_line)
            is_open = chosen is not None
            shown = "left as it is" if chosen in (None, edit.old) else f"-> {chosen}"
            console.print(plain(f"  {shown}"), style="green")
        edits.append(edit._replace(new=edit.old if chosen is None else chosen))
    return replace(correction, edits=tuple(edits), text=apply_edits(correction.original, edits))


def _show(console: Console, text: str, edit: TextEdit) -> None:
    before = text[max(0, edit.start - _CONTEXT) : edit.start].rpartition("\n")[2]
    after = text[edit.stop : edit.stop + _CONTEXT].partition("\n")[0]
    colours = console.color_system is not None and not console.no_color
    old = plain(edit.old if colours else f"[-{edit.old}-]")
    old.stylize("bold red underline")
    console.print(Text.assemble("  ", plain(before), old, plain(after)))
    listed = list(_shown_alternatives(edit))
    width = max(len(alternative.text) for alternative in listed)
    for key, (alternative, probability) in enumerate(listed, start=1):
        row = plain(f"  {key} {alternative:{width}} {percent(probability):>4}")
        console.print(row.append("  as it is" if alternative == edit.old else "", "dim"))
    console.print(Text(_KEYS, "dim"))


def _shown_alternatives(edit: TextEdit) -> Iterator[Alternative]:
    for alternative in edit.alternatives[:_MAX_SHOWN]:
        if alternative.probability >= _LEAST_SHOWN or alternative.text in (edit.old, edit.new):
            yield alternative


def _ask(
    edit: TextEdit, read_key: Callable[[], str], read_line: Callable[[str], str]
) -> str | None:
    """Return the chosen text, None to end the review; keys without a meaning are ignored."""
    listed = list(_shown_alternatives(edit))
    while True:
        key = read_key()
        if key == "a":
            return edit.best_other
        if key == "r":
            return edit.old
        if key in ("s", ""):
            return None
        if key == "e" and (typed := read_line(edit.best_other)):
            return typed
        if key in "123456789"[: len(listed)]:
            return listed[int(key) - 1].text


def press_key() -> str:
    """Wait for a key and return it, without waiting for Enter where the system allows it."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # Windows: a line, of which the first character counts
        return sys.stdin.readline().strip()[:1] or "\n"
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # keys that were pressed early count
        return os.read(descriptor, 1).decode("ascii", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def edit_line(start: str) -> str:
    """Let a user edit a line that begins as `start`, and return it."""
    try:
        import readline
    except ModuleNotFoundError:
        return input("  replace by: ")
    readline.set_startup_hook(lambda: readline.insert_text(start))
    try:
        return input("  replace by: ")
    finally:
        readline.set_startup_hook()
