"""Sessions: requests join and leave at every denoising step, and share forward passes."""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, final

import torch

from gidd.common.allowed import integer, require_arguments
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

        session = Session(network, schedule, rows=16, lengths=64)
        ticket = session.submit(request)
        while session.pending:
            for event in session.step():
                ...

    Each call of `step` makes at most one forward pass, of at most `rows` requests whose lengths are
    padded to the same number of tokens. Up to `rows` requests of a padded length are active, in the
    order in which they were submitted; the others wait. Padded lengths take turns. Plans, steps,
    correctors, times and processors may all differ.

    Samples are bit-identical regardless of which other requests share the batch: shapes depend on
    the request, `rows` and `lengths` alone, and random numbers on its seed. A request that fails
    ends with `Event.error`; other requests are not affected.

    `submit` and `cancel` may be called from any thread, `step` from one at a time.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        rows: int = 1,
        lengths: int = 1,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests.

        Args:
            network: Predicts x_theta.
            schedule: Its noise.
            rows: Sequences in a forward pass. With 1, as on a CPU, nothing is padded.
            lengths: Sequences are padded to a multiple of this many tokens; 1 pads none.
            max_length: The context of the network: the longest sequence, padding included.
            device: Where the network is.
            clock: Returns the time in seconds, for `Limits.seconds`.
        """
        require_arguments(
            rows=(rows, integer(1, fix="It is the number of sequences in a forward pass.")),
            lengths=(lengths, integer(1, fix="64 is common; 1 pads nothing.")),
        )
        if lengths > 1 and not getattr(network, "accepts_padding", False):
            raise ConfigError(
                f"lengths must be 1 for a network that does not accept padding, got {lengths}. "
                "Such a network has no parameter `valid`; see accepts_padding in docs/extending.md."
            )
        self.network, self.schedule = network, schedule
        self.rows, self.max_length = rows, max_length
        self.lengths = lengths if rows > 1 else 1
        self.device = torch.device(device)
        self._clock = clock
        self._numbers = count()
        self._inbox: deque[Ticket] = deque()
        self._buckets: OrderedDict[tuple[int, bool], LengthBucket] = OrderedDict()
        self._open: set[Ticket] = set()
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._checked: OrderedDict[int, Plan] = OrderedDict()

    @property
    def pending(self) -> int:
        """Number of requests that are not done."""
        return len(self._open)

    def submit(
        self, request: Request, limits: Limits = _NO_LIMITS, *, record_frames: bool = False
    ) -> Ticket:
        """Validate and enqueue a request.

        Raises if it is invalid; requests already queued are unaffected.

        Args:
            request: What to sample.
            limits: When to end before the plan does.
            record_frames: Record state and prediction before every step. Costs a pass of the head
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

    def best_tokens(self, ticket: Ticket) -> tuple[int, ...]:
        """Return how an active request would end, were this the last step of its phase.

        This differs from `Ticket.tokens` for a corrector that scores states, such as Algorithm 1.
        """
        return self._bucket(ticket).best_tokens(ticket) if ticket.is_scored else ticket.tokens

    def padded_length(self, num_tokens: int) -> int:
        """Return the length to which a sequence is padded: a rule that depends on it alone."""
        padded = -(-num_tokens // self.lengths) * self.lengths
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
            if ticket.limits.then == "finish":
                ticket.expire()
                self._bucket(ticket).move_to_front(ticket)
            else:
                ticket.error = limit_reached(ticket)
                events.append(ticket.event([]))
        return events

    def _bucket(self, ticket: Ticket) -> LengthBucket:
        """Return the bucket of a request.

        Attention without a mask may have other bits than attention with one, except on a CPU: on
        other devices, sequences that fill their padded length have a bucket of their own.
        """
        num_tokens = len(ticket.request.tokens)
        length = self.padded_length(num_tokens)
        key = length, self.device.type == "cpu" or num_tokens == length
        if key not in self._buckets:
            shape = self.rows, length, self.device
            self._buckets[key] = LengthBucket(self.network, self.schedule, *shape)
        return self._buckets[key]


@final
class Engine:
    """A network, its schedule, and the shape of a forward pass: makes sessions.

    Every forward pass has exactly `rows_per_call` sequences, padded to one length; an incomplete
    batch is padded with copies. The last bits of a matrix product depend on its shape, so the fixed
    shape makes a sequence bit-identical alone and in a batch. `rows_per_call=1` wastes nothing and
    is as fast as any on a CPU. On a GPU choose the batch size that saturates it; then a row must
    also have the same bits at every place in the batch. Kernels usually guarantee that for one
    shape, and the tests check it.

    An engine has no state: it may be used from several threads at once. Each call of `sample` has a
    session of its own.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        rows_per_call: int = 1,
        lengths: int = 1,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Take the arguments of `Session`; `rows_per_call` is its `rows`."""
        shape: dict[str, Any] = {"lengths": lengths, "max_length": max_length, "device": device}
        self.session = partial(Session, network, schedule, rows=rows_per_call, **shape)
        """Start a session without requests."""
        self.session()  # checks the arguments
        self.network, self.schedule, self.device = network, schedule, torch.device(device)
        self.rows_per_call, self.lengths, self.max_length = rows_per_call, lengths, max_length

    def sample(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Sample]:
        """Sample all requests; the result of each does not depend on the others.

        The first request that fails raises its error. Use a session to continue with the others.

        Args:
            requests: Sequences of any lengths, with plans of any lengths.
            on_step: Called after each step of the session.
            record_frames: Record state and predictions before every step. Costs a pass of the head
                per step, and a forward pass where the step would have needed none.
        """
        session = self.session()
        tickets = [session.submit(request, record_frames=record_frames) for request in requests]
        while session.pending:
            events = session.step()
            for event in events:
                if event.error is not None:
                    raise event.error
            if on_step is not None:
                on_step(events)
        return [ticket.sample for ticket in tickets if ticket.sample is not None]
