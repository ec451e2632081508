"""The command `gidd`. Each group of subcommands is a module with `main(arguments)`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from gidd import __version__
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

_CLOSED_PIPE, _INTERRUPTED = 141, 130
"""What a shell reports for a program that was ended by a closed pipe, or by Ctrl-C."""

_STOPPED = "gidd: stopped.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand. A mistake of the user ends in one message and exit code 2."""
    try:
        try:
            _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # here, where a closed pipe is no surprise
    except BrokenPipeError:
        # as in `gidd ... | head`; what is still to be written goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_CLOSED_PIPE) from None
    except GiddError as error:
        print(f"gidd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"gidd: {where}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(_STOPPED, end="", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return
    if words[0] == "--version":
        print(f"gidd {__version__}")
        return
    if words[0] not in GROUPS:
        print(f"gidd: there is no command {words[0]!r}.\n\n{_help()}", file=sys.stderr)
        raise SystemExit(2)
    with _stopping_at_once():
        group = importlib.import_module(f"gidd.cli.{words[0]}")  # only now: others stay unloaded
    group.main(words[1:])


@contextmanager
def _stopping_at_once() -> Generator[None]:
    """Ctrl-C ends the process: compiled modules swallow it while they load, and break later."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # whoever started us has other plans
        return
    signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: object) -> None:
    os.write(sys.stderr.fileno(), _STOPPED.encode())
    os._exit(_INTERRUPTED)


def _help() -> str:
    groups = "\n".join(f"  {name:10} {what}" for name, what in GROUPS.items())
    return (
        "usage: gidd COMMAND ...\n\n"
        "Discrete diffusion language models with any interpolating noise.\n\n"
        f"commands:\n{groups}\n\n"
        "`gidd COMMAND --help` says more, `gidd --version` which gidd this is."
    )
