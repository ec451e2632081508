"""Time and cost limits of a call, for everything that the call computes.

    with Budget(seconds=30, max_cost=10**6) as budget:
        pipe.generate(prompt="I")
        pipe.score(text)

A budget is a context variable: coroutines that are started inside of it are limited as well, and so
are functions that are called with a copy of the context (`contextvars.copy_context`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from threading import RLock
from typing import Self

from gidd.errors import ConfigError, LimitReached


class Budget:
    """Limits time and cost of all requests and forward passes inside of a `with` block.

    A budget inside of another one is limited by both.
    """

    def __init__(
        self,
        *,
        seconds: float | None = None,
        max_cost: int | None = None,
        charge: Callable[[int], None] | None = None,
        record_edits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without work.

        Args:
            seconds: From now on; what is not done by then raises `LimitReached`.
            max_cost: The largest cost of all work together; further work raises `ConfigError`.
            charge: Called with the cost of work before it is made, which it may refuse by raising,
                and at the end with a negative number for work that was not made.
            record_edits: Whether samples have edits.
            clock: Returns the time in seconds.
        """
        self.clock, self.start = clock, clock()
        self._seconds, self._max_cost, self._charge = seconds, max_cost, charge
        self.record_edits = record_edits
        self.cost = 0
        """Tokens of all forward passes that were reserved, see `Session.cost`."""
        self.computed = 0
        """Tokens of the forward passes that were made."""
        self.unused = 0
        """Tokens that are reserved for work that has not begun."""
        self._outer: Budget | None = None
        self._open: set[Callable[[], None]] = set()
        self._is_over = False
        self._tokens: list[Token[Budget | None]] = []
        self._lock = RLock()

    @classmethod
    def current(cls) -> Budget:
        """Return the budget of this context, or a budget without limits."""
        return _CURRENT.get() or cls()

    def __enter__(self) -> Self:
        self._outer = _CURRENT.get()
        if self._outer is not None:
            self.record_edits = self.record_edits and self._outer.record_edits
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._tokens.pop())
        self.cancel()

    @property
    def seconds_left(self) -> float:
        """Seconds until the time is over."""
        outer = math.inf if self._outer is None else self._outer.seconds_left
        return min(outer, self._own_seconds_left)

    @property
    def _own_seconds_left(self) -> float:
        if self._seconds is None:
            return math.inf
        return max(0.0, self.start + self._seconds - self.clock())

    @property
    def late_error(self) -> LimitReached:
        """The error raised after the time limit."""
        if self._outer is not None and self._own_seconds_left:
            return self._outer.late_error
        return LimitReached(f"the call must be finished within {self._seconds or 0:g} seconds.")

    def check(self) -> None:
        """Raise if the budget was cancelled or has ended, or if the time is over."""
        if self._outer is not None:
            self._outer.check()
        if self._is_over:
            raise asyncio.CancelledError
        if not self._own_seconds_left:
            raise self.late_error

    def reserve(self, cost: int) -> None:
        """Reserve work to come, in tokens of forward passes; raise if it is too much.

        Work uses what is reserved, and reserves what is missing: call it where the cost of several
        requests is known before the first.
        """
        with self._lock:
            if self._max_cost is not None and self.cost + cost > self._max_cost:
                raise ConfigError(
                    f"a call must cost at most {self._max_cost:,} (steps times tokens, of all "
                    f"samples), got {self.cost + cost:,}. Use fewer steps or samples, or a shorter "
                    "text."
                )
            if self._outer is not None:
                self._outer.reserve(cost)
            if self._charge is not None:
                self._charge(cost)
            self.cost += cost
            self.unused += cost

    def use(self, cost: int) -> None:
        """Begin work of a cost: use up the reserved cost, and reserve the rest if it is more."""
        with self._lock:
            if cost > self.unused:
                self.reserve(cost - self.unused)
            self.unused -= cost
            if self._outer is not None:
                self._outer.use(cost)

    def add_computed(self, cost: int) -> None:
        """Add to the computed cost."""
        with self._lock:
            self.computed += cost
            if self._outer is not None:
                self._outer.add_computed(cost)

    @contextmanager
    def covers(self, cancel: Callable[[], None]) -> Generator[None]:
        """Call `cancel` if the budget is cancelled before the end of this context."""
        with self._lock:
            self._open.add(cancel)
            if self._is_over:
                cancel()
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.covers(cancel):
                    yield
        finally:
            with self._lock:
                self._open.discard(cancel)
                if self._is_over:
                    self._settle()

    def cancel(self) -> None:
        """Cancel all work inside with `asyncio.CancelledError`; may be called from any thread."""
        with self._lock:
            self._is_over = True
            cancels = list(self._open)
            self._settle()
        for cancel in cancels:
            cancel()

    def _settle(self) -> None:
        """Give back the reserved cost that was not computed, once no work is left."""
        if self._open or self.cost == self.computed:
            return
        if self._charge is not None:
            self._charge(self.computed - self.cost)
        self.cost = self.computed


_CURRENT: ContextVar[Budget | None] = ContextVar("budget", default=None)
