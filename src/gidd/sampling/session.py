"""Sessions: requests join and leave at every denoising step, and share forward passes."""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import final

import torch

from gidd.common.config.allowed import integer, require_arguments
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.length_bucket import LengthBucket
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Plan
from gidd.sampling.request import Limits, Request, Sample
from gidd.sampling.ticket import Event, Ticket, limit_reached

OnStep = Callable[[Sequence[Event]], None]
"""Called after each step of a session, with an event for each request that made a step."""

_NO_LIMITS = Limits()
_MAX_CHECKED_PLANS = 256
_SPARE_DEADLINES = 64
"""Deadlines of finished requests are kept until there are more than this."""


@final
class Session:
    """Samples requests one step at a time.

        session = Session(network, schedule, batch_size=16, pad_to_multiple_of=64)
        ticket = session.submit(request)
        while session.pending:
            for event in session.step():
                ...

    Each call of `step` makes at most one forward pass, of at most `batch_size` requests whose
    lengths are padded to the same number of tokens. That many requests of a padded length are
    active, in the order in which they were submitted; the others wait. Padded lengths take turns.
    Plans, steps, correctors, times and processors may all differ.

    Samples are bit-identical regardless of which other requests share the batch: shapes depend on
    the request, `batch_size` and `pad_to_multiple_of` alone, and random numbers on its seed. A
    request that fails ends with `Event.error`; other requests are not affected.

    `submit` and `cancel` may be called from any thread, `step` from one at a time.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        batch_size: int = 1,
        pad_to_multiple_of: int = 1,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests.

        Args:
            network: Predicts x_theta.
            schedule: Its noise.
            batch_size: Sequences in a forward pass; incomplete batches are padded with copies,
                because the last bits of a matrix product depend on its shape. 1 is best on a CPU.
            pad_to_multiple_of: Sequences are padded to a multiple of this many tokens; 1 pads none.
            max_length: The context of the network: the longest sequence, padding included.
            device: Where the network is.
            clock: Returns the time in seconds, for `Limits.seconds`.
        """
        require_arguments(
            batch_size=(batch_size, integer(1, fix="It counts sequences in a forward pass.")),
            pad_to_multiple_of=(pad_to_multiple_of, integer(1, fix="64 is common; 1 pads none.")),
        )
        if pad_to_multiple_of > 1 and not getattr(network, "accepts_padding", False):
            raise ConfigError(
                "pad_to_multiple_of must be 1 for a network that does not accept padding, got "
                f"{pad_to_multiple_of}. See accepts_padding in docs/extending.md."
            )
        self.network, self.schedule = network, schedule
        self.batch_size, self.max_length = batch_size, max_length
        self.pad_to_multiple_of = pad_to_multiple_of if batch_size > 1 else 1
        self.device = torch.device(device)
        self._clock = clock
        self._numbers = count()
        self._inbox: deque[Ticket] = deque()
        self._buckets: OrderedDict[tuple[int, bool, bool, bool], LengthBucket] = OrderedDict()
        self._open: set[Ticket] = set()
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._checked: OrderedDict[int, Plan] = OrderedDict()

    def new(self) -> Session:
        """Return a session of the same network and shapes, without requests."""
        return Session(
            self.network,
            self.schedule,
            batch_size=self.batch_size,
            pad_to_multiple_of=self.pad_to_multiple_of,
            max_length=self.max_length,
            device=self.device,
            clock=self._clock,
        )

    @property
    def pending(self) -> int:
        """Number of requests that are not done."""
        return len(self._open)

    def submit(
        self, request: Request, limits: Limits = _NO_LIMITS, *, record_frames: bool = False
    ) -> Ticket:
        """Validate and enqueue a request; raise if it is invalid.

        `record_frames` records state and prediction before every step. It costs a pass of the head
        per step, and a forward pass where the step would have needed none.
        """
        request.check(self.schedule, self.max_length)
        self._check_plan(request.plan)
        limits.check()
        ticket = Ticket(next(self._numbers), request, limits, record_frames)
        if limits.seconds is not None:
            ticket.deadline = self._clock() + limits.seconds
        self._open.add(ticket)
        self._inbox.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a request: it makes no further step, and has no further event."""
        ticket.is_cancelled = True
        self._open.discard(ticket)

    def step(self) -> list[Event]:
        """Make one step of the next requests; return what happened to each of them."""
        self._receive()
        events = self._expire()
        while self._buckets:
            key, bucket = self._buckets.popitem(last=False)
            if bucket.is_pending:
                self._buckets[key] = bucket  # behind the other buckets
                events += bucket.step()
                break
        for event in events:
            if event.ticket.is_done:
                self._open.discard(event.ticket)
        return events

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
        tickets = [session.submit(request, record_frames=record_frames) for request in requests]
        while session.pending:
            events = session.step()
            for event in events:
                if event.error is not None:
                    raise event.error
            if on_step is not None:
                on_step(events)
        return [ticket.sample for ticket in tickets if ticket.sample is not None]

    def best_tokens(self, ticket: Ticket) -> tuple[int, ...]:
        """Return how an active request would end, were this the last step of its phase.

        This differs from `Ticket.tokens` for a corrector that scores states, such as Algorithm 1.
        """
        return self._bucket(ticket).best_tokens(ticket) if ticket.is_scored else ticket.tokens

    def padded_length(self, num_tokens: int) -> int:
        """Return the length to which a sequence is padded: a rule that depends on it alone."""
        padded = -(-num_tokens // self.pad_to_multiple_of) * self.pad_to_multiple_of
        return padded if self.max_length is None else max(num_tokens, min(padded, self.max_length))

    def _check_plan(self, plan: Plan) -> None:
        """Check a plan, unless it is among those that were checked before."""
        if id(plan) not in self._checked:
            plan.check(self.schedule)
            self._checked[id(plan)] = plan  # keeps it, so that no other has its id
            if len(self._checked) > _MAX_CHECKED_PLANS:
                self._checked.popitem(last=False)

    def _receive(self) -> None:
        """Move submitted requests to their buckets."""
        while self._inbox:
            ticket = self._inbox.popleft()
            self._bucket(ticket).add(ticket)
            if ticket.deadline is not None:
                heapq.heappush(self._deadlines, (ticket.deadline, ticket.number, ticket))

    def _expire(self) -> list[Event]:
        """End the requests whose time is over, or let their next step be the last."""
        if len(self._deadlines) > 2 * len(self._open) + _SPARE_DEADLINES:  # most are done
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)
        events: list[Event] = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            ticket = heapq.heappop(self._deadlines)[2]
            if ticket.is_done:
                continue
            if ticket.limits.on_limit == "finish":
                ticket.expire()
                self._bucket(ticket).move_to_front(ticket)
            else:
                ticket.error = limit_reached(ticket)
                events.append(ticket.event([]))
        return events

    def _bucket(self, ticket: Ticket) -> LengthBucket:
        """Return the bucket of a request.

        Attention without a mask may have other bits than attention with one, except on a CPU: on
        other devices, sequences that fill their padded length have a bucket of their own. So have
        guided sequences, whose forward passes have twice as many rows, and sequences with choices.
        """
        num_tokens = len(ticket.request.tokens)
        length = self.padded_length(num_tokens)
        is_full = self.device.type == "cpu" or num_tokens == length
        key = length, is_full, ticket.request.is_guided, bool(ticket.request.choices)
        if key not in self._buckets:
            shape = self.batch_size, length, self.device
            self._buckets[key] = LengthBucket(self.network, self.schedule, *shape)
        return self._buckets[key]
