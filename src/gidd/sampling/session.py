"""Sessions: requests join and leave at every denoising step, and share forward passes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch

from gidd.common.config.allowed import integer, optional, require_arguments
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, Overloaded
from gidd.sampling.length_bucket import LengthBucket
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Plan
from gidd.sampling.request import Limits, Request, Sample
from gidd.sampling.ticket import Event, OnStep, Ticket, limit_reached

_NO_LIMITS = Limits()


@dataclass
class SessionCounters:
    """What a session has done since it was made."""

    steps: int = 0
    """Calls of `Session.step` that had something to do."""
    seconds: float = 0.0
    """Time in these calls."""
    rows: int = 0
    """Sequences in forward passes, copies included."""
    used_rows: int = 0
    """Sequences in forward passes that made a step."""
    work: int = 0
    """Tokens in these forward passes, padding and copies included."""
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    """Requests that were refused because too many waited."""


class Session:
    """Samples requests one step at a time.

        session = Session(network, schedule, batch_size=16, pad_to_multiple_of=64)
        ticket = session.submit(request)
        while session.pending:
            for event in session.step():
                ...

    Each call of `step` makes at most one forward pass, of at most `batch_size` requests of one
    padded length; further ones wait. Half of the work is for the request with the least work left,
    half for the one that was submitted first: short requests do not wait for long ones, and none
    starves. A higher priority comes before both. Plans, times and processors may differ.

    Samples are bit-identical regardless of which other requests share the batch: shapes depend on
    the request, `batch_size` and `pad_to_multiple_of` alone, and random numbers on its seed. (With
    `row_buckets` shapes also depend on the number of active requests.) A request that fails ends
    with `Event.error` and affects no other.

    `submit` and `cancel` may be called from any thread, `step` from one at a time. Every request
    that is not cancelled has exactly one event with a sample or an error.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        batch_size: int = 1,
        row_buckets: Sequence[int] = (),
        pad_to_multiple_of: int = 1,
        max_length: int | None = None,
        max_waiting: int | None = None,
        max_cost: int | None = None,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests.

        Args:
            network: Predicts x_theta.
            schedule: Its noise.
            batch_size: Sequences in a forward pass; incomplete batches are padded with copies,
                because the last bits of a matrix product depend on its shape. 1 is best on a CPU.
            row_buckets: Smaller batch sizes, for when no more requests are active.
            pad_to_multiple_of: Sequences are padded to a multiple of this many tokens; 1 pads none.
            max_length: The context of the network: the longest sequence, padding included.
            max_waiting: Requests that may wait for their first step; others raise `Overloaded`.
            max_cost: The largest `cost` of a request; a larger one raises `ConfigError`.
            device: Where the network is.
            clock: Returns the time in seconds, for `Limits.seconds`.
        """
        require_arguments(
            batch_size=(batch_size, integer(1, fix="It counts sequences in a forward pass.")),
            pad_to_multiple_of=(pad_to_multiple_of, integer(1, fix="64 is common; 1 pads none.")),
            max_waiting=(max_waiting, optional(integer(1, fix="None is no limit."))),
            max_cost=(max_cost, optional(integer(1, fix="None is no limit."))),
            **{f"row_buckets[{i}]": (n, integer(1, batch_size)) for i, n in enumerate(row_buckets)},
        )
        if pad_to_multiple_of > 1 and not getattr(network, "accepts_padding", False):
            raise ConfigError(
                "pad_to_multiple_of must be 1 for a network that does not accept padding, got "
                f"{pad_to_multiple_of}. See accepts_padding in docs/extending.md."
            )
        self.network, self.schedule = network, schedule
        self.batch_size, self.max_length = batch_size, max_length
        self.row_buckets = tuple(row_buckets)
        self.pad_to_multiple_of = pad_to_multiple_of if batch_size > 1 else 1
        self.max_waiting, self.max_cost = max_waiting, max_cost
        self.device = torch.device(device)
        self.counters = SessionCounters()
        self.clock = clock
        self._numbers = count()
        self._lock = Lock()  # held while a request is opened or ended, by any thread
        self._inbox: deque[Ticket] = deque()
        self._cancelled: deque[Ticket] = deque()
        self._buckets: dict[tuple[int, bool, bool, bool], LengthBucket] = {}
        self._work_of_rules = [0, 0]
        """Work for the shortest, and for the oldest request, where they were different ones."""
        self._open: set[Ticket] = set()
        self._open_cost = 0
        self._events: list[Event] = []
        """Events of this step; those that it did not return are returned by the next."""
        self._timed: list[tuple[float, Ticket]] = []  # deadlines of the requests that have one
        self._checked: WeakValueDictionary[int, Plan] = WeakValueDictionary()
        """Plans that were checked and are still in use."""

    def new(self, **changes: Any) -> Session:
        """Return a session of the same network and shapes, without requests or their limits.

        `changes` are arguments of a session, e.g. `max_cost=10**6`.
        """
        return Session(self.network, self.schedule, **(self.settings | changes))

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments that determine the shapes of forward passes, device and clock."""
        return {
            "batch_size": self.batch_size,
            "row_buckets": self.row_buckets,
            "pad_to_multiple_of": self.pad_to_multiple_of,
            "max_length": self.max_length,
            "device": self.device,
            "clock": self.clock,
        }

    @property
    def pending(self) -> int:
        """Number of requests that are not done."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their first step."""
        return len(self._inbox) + sum(one.num_waiting for one in list(self._buckets.values()))

    @property
    def expected_wait(self) -> float:
        """Seconds until all open requests are done, at the speed of this session so far."""
        done = self.counters
        return self._open_cost * done.seconds / done.work if done.work else 0.0

    def cost(self, request: Request) -> int:
        """Return the largest number of tokens that go through the network for a request."""
        passes = 2 if request.is_guided else 1
        return passes * len(request.plan) * self.padded_length(len(request.tokens))

    def submit(self, request: Request, limits: Limits = _NO_LIMITS, **options: Any) -> Ticket:
        """Validate and enqueue a request; raise if it is invalid or too many wait.

        For the options see `prepare`.
        """
        ticket = self.prepare(request, limits, **options)
        self.enqueue(ticket)
        return ticket

    def prepare(
        self,
        request: Request,
        limits: Limits = _NO_LIMITS,
        *,
        priority: int = 0,
        record_frames: bool = False,
        record_edits: bool = True,
        on_step: OnStep | None = None,
    ) -> Ticket:
        """Validate a request; return its ticket, with its cost, for `enqueue`.

        Requests of a higher `priority` come first. `record_frames` records state and prediction
        before every step. It costs a pass of the head per step, and a forward pass where the step
        would have needed none. Without `record_edits`, events and sample have no edits. `on_step`
        is called after each step with the events of all requests that were submitted with it; if
        it raises, these requests end with its error.
        """
        request.check(self.schedule, self.max_length)
        if self._checked.get(id(request.plan)) is not request.plan:
            request.plan.check(self.schedule)
            self._checked[id(request.plan)] = request.plan
        limits.check()
        cost = self.cost(request)
        if self.max_cost is not None and cost > self.max_cost:
            raise ConfigError(
                f"a request must cost at most {self.max_cost:,} (steps times tokens), got "
                f"{cost:,}. Use fewer steps or a shorter sequence."
            )
        options = priority, record_frames, record_edits, on_step
        return Ticket(next(self._numbers), request, limits, cost, *options)

    def enqueue(self, ticket: Ticket) -> None:
        """Let a request begin; raise if too many wait."""
        with self._lock:
            if self.max_waiting is not None and self.waiting >= self.max_waiting:
                self.counters.refused += 1
                seconds = self.expected_wait
                raise Overloaded(
                    f"{self.waiting} requests wait, at most {self.max_waiting} may. Try again in "
                    f"{seconds:.0f} seconds.",
                    seconds,
                )
            if ticket.limits.seconds is not None:
                ticket.deadline = self.clock() + ticket.limits.seconds
            self._open.add(ticket)
            self._open_cost += ticket.cost
            self._inbox.append(ticket)

    def cancel(self, ticket: Ticket) -> bool:
        """End a request, without an event; return False if it had ended before."""
        with self._lock:
            if ticket not in self._open:
                return False
            ticket.is_cancelled = True
            self._close(ticket)
            self.counters.cancelled += 1
            self._cancelled.append(ticket)
        return True

    def step(self) -> list[Event]:
        """Make one step of the next requests; return what happened to each of them."""
        start = time.perf_counter()
        self._receive()
        self._expire()
        if (chosen := self._choose()) is not None:
            (ticket, rule), bucket = chosen, self._bucket(chosen[0])
            self._events += bucket.admit(ticket)
            if active := bucket.active:
                self._events += bucket.advance(active)
                rows = bucket.num_rows(len(active))
                self.counters.steps += 1
                self.counters.rows += rows
                self.counters.used_rows += len(active)
                self.counters.work += bucket.length * rows
                if rule is not None:
                    self._work_of_rules[rule] += bucket.length * rows
        self.counters.seconds += time.perf_counter() - start
        with self._lock:
            events, self._events = self._events, []
            for event in events:
                if event.ticket.is_cancelled:
                    event.ticket.discard_result()
                elif event.ticket.is_done:
                    self._close(event.ticket)
                    self.counters.finished += event.error is None
                    self.counters.failed += event.error is not None
        events = {event.ticket: event for event in events if not event.ticket.is_cancelled}
        for on_step in {ticket.on_step: None for ticket in events}:
            own = [event for ticket, event in events.items() if ticket.on_step == on_step]
            try:
                if on_step is not None:
                    on_step(own)
            except Exception as error:
                for event in own:
                    del events[event.ticket]
                events |= {event.ticket: event for event in self._fail(own, error)}
        return list(events.values())

    def _fail(self, events: Sequence[Event], error: Exception) -> list[Event]:
        """End the requests whose callback raised an error; return their events, with the error."""
        failed: list[Event] = []
        with self._lock:
            for event in events:
                ticket = event.ticket
                if event.error is not None:
                    failed.append(event)
                elif not ticket.is_cancelled:
                    if ticket in self._open:
                        self._close(ticket)
                    self.counters.finished -= event.sample is not None
                    self.counters.failed += 1
                    ticket.sample = None
                    failed.append(ticket.fail(error))
        return failed

    def sample(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Sample]:
        """Sample all requests, in a session of their own: several threads may do so at once.

        The first request that fails raises its error. Use `submit` to continue with the others.
        `on_step` is called after each step of the session; for `record_frames` see `submit`.
        """
        session = self.new()
        tickets = [
            session.submit(request, record_frames=record_frames, on_step=on_step)
            for request in requests
        ]
        while session.pending:
            for event in session.step():
                if event.error is not None:
                    raise event.error
        return [ticket.sample for ticket in tickets if ticket.sample is not None]

    def best_tokens(self, ticket: Ticket) -> tuple[int, ...]:
        """Return how an active request would end, were this the last step of its phase.

        This differs from `Ticket.tokens` for a corrector that scores states, such as Algorithm 1.
        """
        return self._bucket(ticket).best_tokens(ticket)

    def padded_length(self, num_tokens: int) -> int:
        """Return the length to which a sequence is padded: a rule that depends on it alone."""
        padded = -(-num_tokens // self.pad_to_multiple_of) * self.pad_to_multiple_of
        return padded if self.max_length is None else max(num_tokens, min(padded, self.max_length))

    def _close(self, ticket: Ticket) -> None:
        """Count a request as done; with the lock."""
        self._open.remove(ticket)
        self._open_cost -= ticket.cost

    def _receive(self) -> None:
        """Move submitted requests to their buckets, and remove cancelled ones."""
        while self._inbox:
            ticket = self._inbox.popleft()
            if ticket.is_done:
                continue
            try:
                self._bucket(ticket).add(ticket)
            except Exception as error:  # no memory for the bucket
                self._events.append(ticket.fail(error))
                continue
            if ticket.deadline is not None:
                self._timed.append((ticket.deadline, ticket))
        while self._cancelled:
            ticket = self._cancelled.popleft()
            if (bucket := self._buckets.get(self._key(ticket))) is not None:
                bucket.remove(ticket)

    def _expire(self) -> None:
        """End the requests whose time is over, or let their next step be the last."""
        if not self._timed:
            return
        now, timed = self.clock(), [entry for entry in self._timed if not entry[1].is_done]
        self._timed = [entry for entry in timed if entry[0] > now]
        for ticket in (ticket for deadline, ticket in timed if deadline <= now):
            if ticket.limits.on_limit == "finish":
                ticket.expire()
                self._bucket(ticket).move_to_front(ticket)
            else:
                self._bucket(ticket).remove(ticket)
                self._events.append(ticket.fail(limit_reached(ticket)))

    def _choose(self) -> tuple[Ticket, int | None] | None:
        """Return the request that makes the next step, and the rule that chose it.

        The rule is None if both rules choose it. Forgets buckets without requests.
        """
        places = {key: bucket.first_places() for key, bucket in self._buckets.items()}
        self._buckets = {key: one for key, one in self._buckets.items() if places[key] is not None}
        found = [place for place in places.values() if place is not None]
        if not found:
            return None
        shortest, oldest = (min(rule)[-1] for rule in zip(*found, strict=True))
        if shortest is oldest:
            return shortest, None
        rule = int(self._work_of_rules[0] > self._work_of_rules[1])
        return (shortest, oldest)[rule], rule

    def _key(self, ticket: Ticket) -> tuple[int, bool, bool, bool]:
        """Return the key of the bucket of a request.

        Attention without a mask may have other bits than attention with one, except on a CPU: on
        other devices, sequences that fill their padded length have a bucket of their own. So have
        guided sequences, whose forward passes have twice as many rows, and sequences with choices.
        """
        num_tokens = len(ticket.request.tokens)
        length = self.padded_length(num_tokens)
        is_full = self.device.type == "cpu" or num_tokens == length
        return length, is_full, ticket.request.is_guided, bool(ticket.request.choices)

    def _bucket(self, ticket: Ticket) -> LengthBucket:
        """Return the bucket of a request."""
        key = self._key(ticket)
        if key not in self._buckets:
            shape = self.batch_size, key[0], self.device, self.row_buckets
            self._buckets[key] = LengthBucket(self.network, self.schedule, *shape)
        return self._buckets[key]
