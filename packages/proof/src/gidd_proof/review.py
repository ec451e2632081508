"""Review of doubtful places in the terminal, one key each; decisions are kept in the journal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import final

from gidd.cli.correct_journal import TextJournal
from gidd.cli.correct_view import best_other, line_starts, percent, place_of, shown_alternatives
from gidd.proofreading.edits import TextEdit
from rich.console import Console
from rich.text import Text

from gidd.common.terminal import printable
from gidd.errors import ConfigError

_CONTEXT = 120
"""Characters that are shown on either side of a place."""

_KEYS = "a accept  1-9 choose  r reject  e edit  s skip  q quit"


class _Answer(Enum):
    SKIP = "skip"
    QUIT = "quit"


def require_terminal() -> None:
    """Raise `ConfigError` if nobody can press keys or see the questions."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "--interactive needs a terminal, and standard input or stderr is not one. Use "
            "--suggest to get all alternatives as JSON lines."
        )


@final
class Review:
    """Asks about the places of one text."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        read_key: Callable[[], str] | None = None,
        read_line: Callable[[str], str] | None = None,
    ) -> None:
        self._name, self._text = name, text
        self._starts = line_starts(text)
        self._read_key = read_key or press_key
        self._read_line = read_line or edit_line
        self._console = Console(stderr=True, highlight=False)

    def run(self, edits: Sequence[TextEdit], journal: TextJournal) -> bool:
        """Ask about every place that is not decided yet; return whether all have been shown."""
        for number, edit in enumerate(edits, start=1):
            if edit.start in journal.choices:
                continue
            self._show(edit, f"{number:,} of {len(edits):,}")
            answer = self._ask(edit)
            if answer is _Answer.QUIT:
                return False
            chosen = None if answer is _Answer.SKIP else str(answer)
            self._say("left as it is" if chosen in (None, edit.old) else f"-> {chosen}")
            journal.add_choice(edit, chosen)
        return True

    def _show(self, edit: TextEdit, place: str) -> None:
        line, _ = place_of(self._starts, edit.start)
        before = self._text[max(0, edit.start - _CONTEXT) : edit.start].rpartition("\n")[2]
        after = self._text[edit.stop : edit.stop + _CONTEXT].partition("\n")[0]
        self._console.print()
        self._console.print(Text(f"{printable(self._name)}:{line}  {place}", "dim"))
        old = printable(edit.old) or "⌃"  # a place between two characters
        colours = self._console.color_system is not None and not self._console.no_color
        marked = Text(old, "bold red underline") if colours else Text(f"[-{old}-]")
        self._console.print(Text.assemble("  ", printable(before), marked, printable(after)))
        width = max(len(text) for text, _ in shown_alternatives(edit))
        for number, (text, probability) in enumerate(shown_alternatives(edit), start=1):
            is_old = text == edit.old
            style = "" if is_old else "bold" if text == best_other(edit) else ""
            note = "  as it is" if is_old else ""
            shown = f"{printable(text):{width}} {percent(probability):>4}"
            self._console.print(Text.assemble(f"  {number} ", (shown, style), (note, "dim")))
        self._console.print(Text(_KEYS, "dim"))

    def _ask(self, edit: TextEdit) -> str | _Answer:
        """Return the text that was chosen; keys without a meaning are ignored."""
        while True:
            key = self._read_key()
            listed = shown_alternatives(edit)
            match key:
                case "a":
                    return best_other(edit)
                case "r":
                    return edit.old
                case "s":
                    return _Answer.SKIP
                case "q" | "":
                    return _Answer.QUIT
                case "e":
                    if typed := self._read_line(best_other(edit)):
                        return typed
                    self._say("nothing was typed; the place is still open")
                case _ if key in "123456789"[: len(listed)]:
                    return listed[int(key) - 1][0]
                case _:
                    pass

    def _say(self, text: str) -> None:
        self._console.print(Text(f"  {printable(text)}", "green"))


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
