"""Messages of the commands on standard error; imports nothing that is slow to load."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager

from gidd.common.terminal import printable
from gidd.common.urls import redacted


def print_message(text: str) -> None:
    """Print a message after `gidd: `.

    Messages quote names and contents of files. So control characters are replaced, also where
    standard error is no terminal: a log file may be shown on one later. They also quote arguments,
    which may be URLs with credentials.
    """
    print(f"gidd: {printable(redacted(text))}", file=sys.stderr, flush=True)


class _MessageHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_message(self.format(record))


@contextmanager
def print_warnings() -> Generator[None]:
    """Print what the package logs as warnings while the block runs."""
    handler, logger = _MessageHandler(logging.WARNING), logging.getLogger("gidd")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
