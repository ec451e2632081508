"""Learn and show what mistakes look like, for `gidd correct --channel`.

Examples:
  gidd channel learn pairs.tsv --out mine.json
  gidd channel show mine.json
  gidd channel show keyboard
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from gidd.proofreading.channels import EDIT_KINDS, Channel, channel_by_name
from gidd.proofreading.learn_channel import learn_channel
from gidd.proofreading.pair_files import read_pairs
from rich.table import Table

from gidd.cli.console import CliConsole, plain
from gidd.cli.output import print_text, require_writable
from gidd.cli.parsing import parse_subcommand
from gidd.common.allowed import integer, require_arguments

_WRITTEN = 6
"""Written characters that are shown for each right one."""


def learn_channel_command(
    pairs: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PAIRS")], /, *, out: Path
) -> None:
    """Learn what mistakes look like from pairs of wrong and right text.

    Example: gidd channel learn pairs.tsv --out mine.json

    Args:
        pairs: A file with wrong<TAB>right on each line, words or sentences, or a file .jsonl with
            objects {"wrong": ..., "right": ...}.
        out: JSON file to write the channel to, for `gidd correct --channel FILE`.
    """
    require_writable(out, "--out")
    channel = learn_channel(read_pairs(pairs), name=out.stem)
    channel.save(out)
    num = len(channel.by_right)
    print_text(f"{out}: replacements of {num} different characters; {_kinds(channel)}")


def show_channel_command(
    channel: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")],
    /,
    *,
    num: int = 20,
) -> None:
    """Show the most likely replacements of a channel.

    Example: gidd channel show keyboard

    Args:
        channel: keyboard, ocr, or a file of `gidd channel learn`.
        num: Number of characters to show, letters first, then by their most likely
            replacement.
    """
    require_arguments(num=(num, integer(1)))
    shown = channel_by_name(channel)
    table = Table(box=None, pad_edge=False)
    table.add_column("right", no_wrap=True)
    table.add_column("written, with P(written | right, replaced)", no_wrap=True)
    order = sorted(shown.by_right, key=lambda right: _letters_first(shown, right))
    for right in order[:num]:
        others = list(shown.by_right[right].items())
        cells = [f"{_visible(written)} {value:.1%}" for written, value in others[:_WRITTEN]]
        more = [f"... {len(others) - _WRITTEN} more"] if len(others) > _WRITTEN else []
        table.add_row(plain(_visible(right)), plain("   ".join(cells + more)))
    console = CliConsole(highlight=False)
    console.print(plain(f"{shown.name}: {_kinds(shown)}"))
    console.print(table)
    if len(order) > num:
        console.print(plain(f"... {len(order) - num} more characters (--num)"))


def _kinds(channel: Channel) -> str:
    shares = [f"{channel.kinds[kind]:.0%} {kind}" for kind in EDIT_KINDS if channel.kinds[kind]]
    return f"mistakes: {', '.join(shares)}"


def _letters_first(channel: Channel, right: str) -> tuple[bool, float, str]:
    return not right.isalpha(), -max(channel.by_right[right].values()), right


def _visible(character: str) -> str:
    return "space" if character == " " else repr(character) if character.isspace() else character


def main(arguments: Sequence[str]) -> None:
    """Parse and run a subcommand."""
    parse_subcommand(
        {"learn": learn_channel_command, "show": show_channel_command},
        arguments,
        prog="gidd channel",
        description=__doc__,
    )
