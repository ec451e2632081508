"""The command `gidd`. Each group of subcommands is a module with `main(arguments)`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from gidd.errors import GiddError

GROUPS = {
    "data": "tokenizers, token shards, corpora",
    "train": "train a model, or go on training it",
    "export": "write a run's newest checkpoint as a model",
    "sample": "write texts with a model, from nothing or from a prompt",
    "infill": "fill the blanks of a text",
    "correct": "find and mend wrong words of a text",
    "plot": "draw the curves of runs",
    "plan": "memory, time, traffic and failures of a run on devices that are not here",
}
"""Module of this package: what it is for."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand. A mistake of the user ends in one message and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return
    if words[0] not in GROUPS:
        print(f"gidd: there is no command {words[0]!r}.\n\n{_help()}", file=sys.stderr)
        raise SystemExit(2)
    group = importlib.import_module(f"gidd.cli.{words[0]}")  # only now: others stay unloaded
    try:
        group.main(words[1:])
    except GiddError as error:
        print(f"gidd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("gidd: stopped.", file=sys.stderr)
        raise SystemExit(130) from None


def _help() -> str:
    groups = "\n".join(f"  {name:10} {what}" for name, what in GROUPS.items())
    return (
        "usage: gidd COMMAND ...\n\n"
        "Discrete diffusion language models with any interpolating noise.\n\n"
        f"commands:\n{groups}\n\n"
        "`gidd COMMAND --help` says more."
    )
