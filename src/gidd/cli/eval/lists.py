"""Lists of values on the command line: `--rate 0.02,0.05` is `--rate 0.02 0.05`."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def split_commas(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return the arguments with the values of these flags split at commas."""
    words: list[str] = []
    is_list = False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") in flags:
            is_list = True
            words += [flag, *_parts(value)] if equals else [argument]
        else:
            is_list = is_list and not argument.startswith("--")
            words += _parts(argument) if is_list else [argument]
    return words


def _parts(value: str) -> list[str]:
    return [part for part in value.split(",") if part]
