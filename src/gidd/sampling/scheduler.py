"""Decides which requests make the next step; no tensors.

Half of the work is for the request with the least work left, half for the oldest one: a short
request does not wait for long ones, and none starves. A higher priority comes before both. Forward
passes that are no denoising steps, such as those of likelihoods, have half of the work while
requests wait as well, by the same two rules: the call that has computed least, and the oldest one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gidd.sampling.limits import Budget
from gidd.sampling.progress import Progress, Shape

_T = TypeVar("_T")
_Place = tuple[int, int, int, Progress]
"""Place of a request in a queue: the lowest is first; the third number is its own."""


@dataclass(eq=False)
class Pass:
    """A forward pass that is no denoising step."""

    function: Callable[[], Any]
    cost: int
    budget: Budget
    call: Any = None
    """The call of the session that awaits it."""
    is_made: bool = False
    is_cancelled: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was made, failed or was cancelled."""
        return self.is_made or self.is_cancelled or self.error is not None

    @property
    def computed(self) -> int:
        """Tokens that were computed."""
        return self.cost * self.is_made


class Turn(NamedTuple):
    """The requests of a shape that make the next step, with those that have a row already."""

    shape: Shape
    joining: Sequence[Progress]
    parked: Progress | None
    """A request that gives its row to another one, and waits."""
    failed: Sequence[Progress]
    """Requests whose limits allow no other step."""
    rule: int | None
    """The rule that chose them; None if both did."""


@dataclass
class _Queue:
    """Requests of one shape: those with a row, and those that wait for one, in two orders."""

    active: list[Progress] = field(default_factory=list[Progress])
    _places: dict[Progress, tuple[_Place, _Place]] = field(default_factory=dict[Any, Any])
    _shortest: list[_Place] = field(default_factory=list[_Place])
    _oldest: list[_Place] = field(default_factory=list[_Place])

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Progress]:
        yield from self.active
        yield from self._places

    def __contains__(self, progress: Progress) -> bool:
        return progress in self._places

    def add(self, progress: Progress, *, is_next: bool = False) -> None:
        """Add a waiting request; with `is_next` before all others of its priority."""
        places = _shortest(progress), _oldest(progress, is_next=is_next)
        self._places[progress] = places
        for queue, place in zip((self._shortest, self._oldest), places, strict=True):
            insort(queue, place)

    def remove(self, progress: Progress) -> None:
        """Remove a waiting request."""
        places = self._places.pop(progress)
        for queue, place in zip((self._shortest, self._oldest), places, strict=True):
            del queue[bisect_left(queue, place)]

    def oldest(self, count: int) -> list[Progress]:
        """Return the first `count` waiting requests."""
        return [place[-1] for place in self._oldest[:count]]

    def first_places(self) -> tuple[_Place, _Place]:
        """Return the first place by each rule, over active and waiting requests."""
        shortest = [*map(_shortest, self.active), *self._shortest[:1]]
        return min(shortest), min([*map(_oldest, self.active), *self._oldest[:1]])


def _shortest(progress: Progress) -> _Place:
    return -progress.priority, progress.work_left, progress.order, progress


def _oldest(progress: Progress, *, is_next: bool = False) -> _Place:
    return -progress.priority, not is_next, progress.order, progress


class Scheduler:
    """Holds the open requests and other forward passes of a session, and picks the next."""

    def __init__(self) -> None:
        self._queues: dict[Shape, _Queue] = {}
        self._passes: list[Pass] = []
        self._next_deadline = math.inf
        self._work_of_rules = [0, 0], [0, 0]
        """Of steps and of other passes: work by each rule, where they chose differently."""
        self._passes_ahead = 0
        """Tokens of other passes less those of steps, since both have had work."""

    def __bool__(self) -> bool:
        return bool(self._queues or self._passes)

    @property
    def num_active(self) -> int:
        """Number of requests with a row."""
        return sum(len(queue.active) for queue in list(self._queues.values()))

    @property
    def reserved(self) -> int:
        """Tokens that calls of `compute` have reserved for further forward passes."""
        return sum(budget.unused for budget in {waiting.budget for waiting in list(self._passes)})

    def has(self, shape: Shape) -> bool:
        """Whether there are requests of a shape."""
        return shape in self._queues

    def add(self, work: Progress | Pass) -> None:
        """Add a request, which waits for a row, or a forward pass, which waits for its turn."""
        if isinstance(work, Pass):
            self._passes.append(work)
            return
        self._queues.setdefault(work.shape, _Queue()).add(work)
        self._next_deadline = min(self._next_deadline, work.deadline)

    def remove(self, work: Progress | Pass) -> None:
        """Remove a request or forward pass that is done."""
        if isinstance(work, Pass):
            with suppress(ValueError):
                self._passes.remove(work)
        elif (queue := self._queues.get(work.shape)) is not None:
            if work in queue:
                queue.remove(work)
            else:
                with suppress(ValueError):
                    queue.active.remove(work)
            if not len(queue) and not queue.active:
                del self._queues[work.shape]

    def late(self, now: float) -> list[Progress | Pass]:
        """Return the requests and forward passes whose time is over.

        Other requests make their last step, and have the next free row.
        """
        late: list[Progress | Pass] = [
            waiting for waiting in self._passes if not waiting.budget.seconds_left
        ]
        for forward_pass in late:
            forward_pass.error = forward_pass.budget.late_error
        if now < self._next_deadline:
            return late
        everyone = [(queue, progress) for queue in self._queues.values() for progress in queue]
        self._next_deadline = math.inf
        for queue, progress in everyone:
            if progress.deadline <= now:
                if waits := progress in queue:
                    queue.remove(progress)
                progress.end_in_time(now)
                if waits:
                    queue.add(progress, is_next=True)
            if progress.is_done:
                late.append(progress)
            else:
                self._next_deadline = min(self._next_deadline, progress.deadline)
        return late

    def next(self) -> Turn | Pass | None:
        """Return the turn or the forward pass that comes next; None if nothing waits."""
        if not (self._queues and self._passes):
            self._passes_ahead = 0
        if self._passes and (not self._queues or self._passes_ahead <= 0):
            return self._next_pass()
        return self._next_turn() if self._queues else None

    def _next_pass(self) -> Pass:
        shortest = min(self._passes, key=lambda waiting: waiting.budget.computed)
        oldest = min(self._passes, key=lambda waiting: waiting.budget.start)
        chosen, rule = self._choose(shortest, oldest, self._work_of_rules[1])
        self._passes.remove(chosen)
        self._passes_ahead += chosen.cost
        if rule is not None:
            self._work_of_rules[1][rule] += chosen.cost
        return chosen

    @staticmethod
    def _choose(shortest: _T, oldest: _T, work: list[int]) -> tuple[_T, int | None]:
        """Return what comes next by the rule with less work so far, and this rule."""
        if shortest is oldest:
            return shortest, None
        rule = int(work[0] > work[1])
        return (shortest, oldest)[rule], rule

    def _next_turn(self) -> Turn:
        places = zip(*(queue.first_places() for queue in self._queues.values()), strict=True)
        shortest, oldest = (min(rule)[-1] for rule in places)
        chosen, rule = self._choose(shortest, oldest, self._work_of_rules[0])
        queue, parked, joining = self._queues[chosen.shape], None, list[Progress]()
        num_free = chosen.shape.rows - len(queue.active)
        if chosen in queue:
            joining.append(chosen)
            if not num_free:
                parked, num_free = max(queue.active, key=_shortest), 1
                queue.active.remove(parked)
                queue.add(parked)
        joining += [progress for progress in queue.oldest(num_free) if progress is not chosen]
        joining = joining[:num_free]
        for progress in joining:
            queue.remove(progress)
        queue.active += joining
        limited = [progress for progress in queue.active if progress.reaches_limit()]
        for progress in limited:
            progress.end_by_limit()  # by an error, or its next step is the last
        failed = [progress for progress in limited if progress.is_done]
        joining = [progress for progress in joining if not progress.is_done]
        return Turn(chosen.shape, joining, parked, failed, rule)

    def count_step(self, work: int, rule: int | None) -> None:
        """Count the tokens of the forward pass of a turn."""
        self._passes_ahead -= work
        if rule is not None:
            self._work_of_rules[0][rule] += work
