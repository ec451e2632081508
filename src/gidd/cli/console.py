"""Standard output as the commands write tables and colours to it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gidd.common.terminal import printable


class CliConsole(Console):
    """A closed pipe is for `gidd.cli.main` to deal with."""

    def on_broken_pipe(self) -> None:
        """Rich would end the program with status 1."""
        raise BrokenPipeError


def plain(text: str) -> Text:
    """Return text from outside as it may be shown: no control characters, markup or emoji names."""
    return Text(printable(text))
