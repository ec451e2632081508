"""The command `gidd`. Each subcommand is a module of this package with `main(arguments)`.

Modules import torch inside functions, after the options are parsed: help and mistakes are shown at
once.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from gidd import __version__
from gidd.errors import GiddError

COMMANDS = {
    "data": "train tokenizers, prepare token shards, list corpora",
    "train": "train a model or resume training",
    "export": "write the newest checkpoint of a run as a model",
    "sample": "generate text with a model, with or without a prompt",
    "infill": "fill the blanks of a text",
    "correct": "find and fix tokens that are unlikely under a model",
    "plot": "plot the training curves of runs",
    "plan": "estimate memory, time, network traffic and failures of a run on other hardware",
}
"""Module of this package: what it does."""

_CLOSED_PIPE, _INTERRUPTED = 141, 130
"""Exit codes that shells report for SIGPIPE and SIGINT."""

_STOPPED = "gidd: stopped.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand. A mistake of the user ends in one message and exit code 2."""
    try:
        try:
            _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # a closed pipe is reported here, not at exit
    except BrokenPipeError:
        # as in `gidd ... | head`; remaining output is discarded
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
    command = words[0]
    if command == "--version":
        print(f"gidd {__version__}")
        return
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f" Did you mean `gidd {near[0]}`?" if near else ""
        print(f"gidd: there is no command {command!r}.{hint}\n\n{_help()}", file=sys.stderr)
        raise SystemExit(2)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # otherwise keep the choice of the parent process
        signal.signal(signal.SIGINT, _on_interrupt)
    try:
        importlib.import_module(f"gidd.cli.{command}").main(words[1:])
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    """Exit at once during an import: compiled modules swallow KeyboardInterrupt and break later."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(sys.stderr.fileno(), _STOPPED.encode())
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _help() -> str:
    commands = "\n".join(f"  {name:10} {what}" for name, what in COMMANDS.items())
    return (
        "usage: gidd COMMAND ...\n\n"
        "Discrete diffusion language models: train, sample, infill, correct.\n\n"
        "examples:\n"
        "  gidd train nano                              # minutes on a laptop\n"
        "  gidd export runs/nano --out models/nano\n"
        '  gidd sample models/nano --prompt "My fellow citizens"\n\n'
        f"commands:\n{commands}\n\n"
        "Run `gidd COMMAND --help` for the options of a command, `gidd --version` for the version."
    )
