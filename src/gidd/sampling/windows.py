"""Overlapping windows over texts that are longer than the context."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """A part of a text that fits into the context, and the tokens in it that it is used for."""

    start: int
    stop: int

    own_start: int
    own_stop: int
    """Every token of the text is owned by exactly one window."""

    @property
    def own(self) -> slice:
        """The window's own tokens, relative to its start."""
        return slice(self.own_start - self.start, self.own_stop - self.start)


def windows(num_tokens: int, context: int) -> list[Window]:
    """Return overlapping windows over a text: one if it fits, else several of `context` tokens.

    A window's own tokens have at least a quarter of the context on either side, except at the
    beginning and the end of the text.
    """
    if num_tokens <= context:
        return [Window(0, num_tokens, 0, num_tokens)]
    margin = context // 4
    stride = context - 2 * margin
    found: list[Window] = []
    own_start = 0
    while own_start < num_tokens:
        start = min(max(own_start - margin, 0), num_tokens - context)
        own_stop = own_start + stride if own_start else context - margin
        if start + context >= num_tokens:
            own_stop = num_tokens
        found.append(Window(start, start + context, own_start, own_stop))
        own_start = own_stop
    return found
