"""Probes: a tokenizer from outside encodes and decodes short texts before it is used.

A regular expression may take time exponential in the length of a text, and a damaged table may make
the library fail (panic) on any text. Probes find what shows on repeated characters; what they miss
ends in a `DataError` later.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gidd.errors import DataError

_TYPICAL = ("a", "A", "1", " ", "\n", ".", "中")
_LENGTHS = (64, 256, 1024)
"""Characters of the probes: what is exponential fails at 64, what is cubic at 1,024."""

_CPU_SECONDS = 0.25
"""For one probe. Published tokenizers take 1 ms, quadratic expressions 10 ms, cubic ones 2 s."""

_GROWTH = 64
"""Tokens per character of a text, and characters that are decoded from it."""

_MAX_CHARACTERS = 64
_MAX_WORDS = 16
_MAX_SOURCE = 256
"""Different characters and words of the expressions that are tried, and characters in all."""

_stderr = threading.Lock()


def require_fast(inner: Any, patterns: Sequence[str], name: str, remedy: str) -> None:
    """Raise `DataError` if a tokenizer is slow on short texts or writes far more than it reads.

    Args:
        inner: Tokenizer of the `tokenizers` library.
        patterns: Its regular expressions: their characters are what may take long.
        name: The file, for messages.
        remedy: What to do about it.
    """
    inner.no_padding()
    inner.no_truncation()
    for text in _probes(patterns):
        start = time.thread_time()
        amount = _output(inner, text)
        seconds = time.thread_time() - start
        if seconds > _CPU_SECONDS:
            raise DataError(
                f"{name} must take at most {_CPU_SECONDS} s for {len(text):,} characters, got "
                f"{seconds:.2f} s for {text[:8]!r}...: a regular expression in it takes too long. "
                f"{remedy}"
            )
        if amount > _GROWTH * len(text):
            raise DataError(
                f"{name} must make at most {_GROWTH} tokens or characters of each character, got "
                f"{amount:,} for the {len(text):,} of {text[:8]!r}.... {remedy}"
            )


def _output(inner: Any, text: str) -> int:
    """Encode and decode a text; return the larger of its tokens and its characters afterwards."""
    try:
        tokens = inner.encode(text, add_special_tokens=False).ids
        return max(len(tokens), len(inner.decode(tokens, skip_special_tokens=False)))
    except Exception:  # a closed vocabulary may refuse a text; a panic is no Exception
        return 0


def _probes(patterns: Sequence[str]) -> Iterator[str]:
    """Yield repeated characters and words, alone and followed by another character.

    After that come the expressions themselves: what they require is somewhere in the text.
    """
    source = "\n".join(patterns)
    characters = list(dict.fromkeys(source))[:_MAX_CHARACTERS]
    words = list(dict.fromkeys(re.findall(r"\w\w+", source)))[:_MAX_WORDS]
    units = list(dict.fromkeys((*_TYPICAL, *characters, *words)))
    for length in _LENGTHS:
        for unit in units:
            repeated, other = (unit * length)[:length], "?" if unit == "!" else "!"
            yield repeated
            yield repeated + other
            if source:
                yield repeated + other + source[:_MAX_SOURCE]


@contextmanager
def without_panic_messages() -> Generator[None]:
    """Discard what is written to the file descriptor of stderr: a panic also prints its message.

    It is that of the exception. The descriptor is the process's, hence the lock; other threads
    lose what they write meanwhile.
    """
    with _stderr:
        try:
            saved = os.dup(2)
        except OSError:  # closed: nothing is printed
            yield
            return
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(null)
