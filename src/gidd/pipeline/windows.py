"""Texts longer than the model's context, in windows that overlap."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """A part of a text that fits into the context, and which of it the window answers for."""

    start: int
    stop: int

    own_start: int
    own_stop: int
    """Every token is some window's own, and no token is the own of two."""

    @property
    def own(self) -> slice:
        """The window's own tokens, counted from its start."""
        return slice(self.own_start - self.start, self.own_stop - self.start)


def windows(num_tokens: int, context: int) -> list[Window]:
    """Windows over a text: one if it fits, else several of `context` tokens each.

    A window's own tokens have at least a quarter of the context on either side of them to be read,
    except where the text begins or ends.
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
