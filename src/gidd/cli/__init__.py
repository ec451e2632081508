"""The command `gidd`. Each subcommand is a module of this package with `main(arguments)`.

Modules import torch inside functions, after the options are parsed: help and mistakes are shown at
once. The exports are for commands of other distributions, such as `gidd-proof`.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gidd import __version__
from gidd.common.lazy import lazy_exports
from gidd.common.messages import print_message
from gidd.errors import GiddError

if TYPE_CHECKING:
    from gidd.cli.correct import (
        TextSource as TextSource,
        describe_edits as describe_edits,
        line_starts as line_starts,
        matching_spans as matching_spans,
        percent as percent,
        place_of as place_of,
        print_correction as print_correction,
        read_source as read_source,
        read_sources as read_sources,
        replace_file as replace_file,
        require_patterns as require_patterns,
        show_changes as show_changes,
        show_patch as show_patch,
        summary as summary,
    )
    from gidd.cli.output import (
        CliConsole as CliConsole,
        plain as plain,
        print_json as print_json,
        print_text as print_text,
        require_writable as require_writable,
        write_stdout as write_stdout,
    )
    from gidd.cli.parsing import parse as parse
    from gidd.common.files import (
        Limit as Limit,
        explain_damage as explain_damage,
        file_lock as file_lock,
        read_json as read_json,
        read_regular as read_regular,
        write_text as write_text,
    )
    from gidd.common.messages import show_counts as show_counts

__getattr__, __dir__ = lazy_exports(__name__)

COMMANDS = {  # module of this package: what it does
    "data": "train tokenizers, prepare token shards, list corpora",
    "train": "train a model or resume training",
    "export": "write the newest checkpoint of a run, or a model of another project, as a model",
    "push": "upload a model to the Hugging Face hub",
    "sample": "generate text with a model, with or without a prompt",
    "chat": "chat with a model that was trained on conversations",
    "infill": "fill the blanks of a text",
    "correct": "find and fix wrong tokens in texts",
    "score": "compute the likelihood of a text and the confidence in its tokens",
    "serve": "serve models over HTTP, with a page to try them",
    "eval": "measure a model: likelihood, samples, correction, tasks",
    "compare": "compare two results of `gidd eval`: numbers, significance, settings",
    "plot": "plot runs, results of evaluations and noise schedules",
    "demo": "see a small model write, fill blanks and correct itself",
    "doctor": "check the installation and measure this machine",
    "plan": "estimate memory, time, network traffic and failures of a run on other hardware",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
}
_HELP = """\
usage: gidd COMMAND ...

Discrete diffusion language models: train, sample, chat, infill, correct.

examples:
  gidd demo                                    # a small model, in a minute
  gidd train nano                              # minutes on a laptop
  gidd export runs/nano --out models/nano
  gidd sample models/nano --prompt "My fellow citizens"

commands:
{commands}

Run `gidd COMMAND --help` for the options of a command, `gidd --version` for the version."""

_CLOSED_PIPE, _INTERRUPTED = 141, 130  # exit codes that shells report for SIGPIPE and SIGINT
_STOPPED = "stopped."
_OUT_OF_MEMORY = "out of memory. Use a smaller batch, length, number of samples or model."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand. A mistake of the user ends in one message and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _exit_codes(), _warnings(), _interrupts():
        if words[:1] == ["--version"]:
            print(f"gidd {__version__}")
        elif (module := choose_command("gidd", COMMANDS, words, _HELP)) is not None:
            importlib.import_module(module).main(words[1:])


def run_command(command: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """Run a command of another distribution with the messages and exit codes of `gidd`."""
    with _exit_codes(), _warnings(), _interrupts():
        command(arguments)


@contextmanager
def _warnings() -> Generator[None]:
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("gidd")
    handler.emit = lambda record: print_message(handler.format(record))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _exit_codes() -> Generator[None]:
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a closed pipe is reported here, not at exit
    except BrokenPipeError:
        # as in `gidd ... | head`; remaining output is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_CLOSED_PIPE) from None
    except GiddError as error:
        print_message(str(error))
        raise SystemExit(2) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print_message(f"{where}{error.strerror or error}")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print_message(_STOPPED)
        raise SystemExit(_INTERRUPTED) from None
    except (MemoryError, RuntimeError) as error:  # of Python or torch, which is not imported here
        is_gpu = type(error).__name__ == "OutOfMemoryError"
        if not (isinstance(error, MemoryError) or is_gpu or "DefaultCPUAllocator" in str(error)):
            raise
        print_message(_OUT_OF_MEMORY)
        raise SystemExit(2) from None


@contextmanager
def _interrupts() -> Generator[None]:
    """Handle Ctrl-C by `_on_interrupt`, unless the parent process chose another handler."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def choose_command(
    prog: str, commands: Mapping[str, str], words: Sequence[str], help_text: str
) -> str | None:
    """Return the module, with a function `main`, of the command that the first word names.

    Without a word, or for --help, this prints the help, with {commands}, and returns None.
    """
    width = max(map(len, commands))
    lines = (f"  {name:{width}} {summary}" for name, summary in commands.items())
    help_text = help_text.format(commands="\n".join(lines))
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(help_text)
        return None
    if name not in commands:
        near = difflib.get_close_matches(name, commands, 1)
        hint = f" Did you mean `{prog} {near[0]}`?" if near else ""
        print_message(f"there is no command {name!r} of `{prog}`.{hint}\n\n{help_text}")
        raise SystemExit(2)
    package = prog.replace("gidd", "gidd.cli", 1).replace(" ", ".")
    return f"{package}.{name.replace('-', '_')}"


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, unless it would break what it interrupts.

    Compiled modules swallow it while they are imported, and fail later: exit at once. Code of the
    event loop would forget a task, and wait for it forever: raise it in the loop's next turn.
    """
    is_in_loop = frame is not None and Path(frame.f_code.co_filename).parent.name == "asyncio"
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(sys.stderr.fileno(), f"gidd: {_STOPPED}\n".encode())
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    loop = sys.modules["asyncio"]._get_running_loop() if is_in_loop else None
    if loop is None:
        raise KeyboardInterrupt
    loop.call_soon_threadsafe(signal.default_int_handler, signum, None)
