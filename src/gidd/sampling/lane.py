"""Sequences of one padded length that go through the network together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from gidd.common.devices import upload
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas
from gidd.sampling.network import DenoisingNetwork, unusable_predictions
from gidd.sampling.step_batch import Change, StepBatch
from gidd.sampling.ticket import Event, Ticket, limit_reached
from gidd.sampling.trace import Edit

if TYPE_CHECKING:
    from jaxtyping import Int


@final
class Lane:
    """At most `rows` active sequences, and others that wait for a free row.

    Every forward pass has exactly `rows` sequences, an incomplete one is padded with copies.
    Sequences with different steps share it; the functions of the steps are called one by one.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        rows: int,
        length: int,
        device: torch.device,
    ) -> None:
        self._network, self._schedule, self._device = network, schedule, device
        self._num_rows, self._length = rows, length
        self._waiting: deque[Ticket] = deque()
        self._slots: list[Ticket | None] = [None] * rows
        self._canvas: Canvas | None = None
        self._tokens = np.zeros((rows, length), dtype=np.int64)
        self._capacity: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether there is a sequence that is not done."""
        tickets = chain(self._slots, self._waiting)
        return any(ticket is not None and not ticket.is_done for ticket in tickets)

    def add(self, ticket: Ticket) -> None:
        """Put a sequence into the queue."""
        self._waiting.append(ticket)

    def move_to_front(self, ticket: Ticket) -> None:
        """Let a sequence have the next free row, if it still waits for one."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            self._waiting.appendleft(ticket)

    @torch.no_grad()
    def step(self) -> list[Event]:
        """Fill free rows from the queue, and make the next step of every row."""
        events = self._admit() + self._limit_calls()
        active = [row for row, ticket in enumerate(self._slots) if ticket is not None]
        return events + self._advance(active) if active else events

    def best_tokens(self, ticket: Ticket) -> tuple[int, ...]:
        """Return the best state so far of an active sequence."""
        assert self._canvas is not None
        tokens = self._canvas.best.tokens[self._slots.index(ticket), : len(ticket.request.tokens)]
        return tuple(tokens.tolist())

    def _limit_calls(self) -> list[Event]:
        """End sequences that have used their forward passes, or let the next step be the last."""
        events: list[Event] = []
        for row, ticket in enumerate(self._slots):
            if ticket is not None and ticket.reaches_calls():
                if ticket.limits.then == "finish":
                    ticket.expire()
                else:
                    events.append(self._fail(row, limit_reached(ticket)))
        return events

    def _admit(self) -> list[Event]:
        """Fill free rows; return the ends of sequences that have no step to make."""
        free = [row for row, ticket in enumerate(self._slots) if ticket is None or ticket.is_done]
        for row in free:
            if (ticket := self._slots[row]) is not None:
                ticket.leave()
            self._slots[row] = None
        tickets: list[Ticket] = []
        while self._waiting and len(tickets) < len(free):
            ticket = self._waiting.popleft()
            if not ticket.is_done:
                tickets.append(ticket)
        if not tickets:
            return []
        rows = free[: len(tickets)]
        self._start(rows, tickets)
        events: list[Event] = []
        for row, ticket in zip(rows, tickets, strict=True):
            ticket.start(self._tokens[row, : len(ticket.request.tokens)])
            if all(ticket.request.are_protected) or not ticket.num_steps:
                ticket.finish()
                events.append(ticket.event([]))
            else:
                self._slots[row] = ticket
        return events

    def _start(self, rows: list[int], tickets: Sequence[Ticket]) -> None:
        """Put sequences before their first step into some rows."""
        shape = len(tickets), self._length
        tokens, protected = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
        valid = np.zeros(shape, np.bool_)
        for k, request in enumerate(ticket.request for ticket in tickets):
            length = len(request.tokens)
            tokens[k, :length] = [-1 if v is None else v for v in request.tokens]
            protected[k, :length], valid[k, :length] = request.are_protected, True
        blank = tokens < 0
        canvas = Canvas.start(
            self._schedule,
            torch.from_numpy(tokens).to(self._device),
            torch.from_numpy(protected).to(self._device),
            torch.from_numpy(blank).to(self._device) if blank.any() else None,
            torch.from_numpy(valid).to(self._device),
            self._integers([ticket.request.seed for ticket in tickets]),
            self._integers([ticket.request.sample_index for ticket in tickets]),
        )
        if self._canvas is None:
            # rows without a sequence hold copies, which no step reads
            self._canvas = canvas.rows(self._integers([0] * self._num_rows))
        self._canvas.put(self._integers(rows), canvas)
        self._tokens[rows] = canvas.tokens.cpu().numpy()

    def _advance(self, rows: list[int]) -> list[Event]:
        """Step some rows; if that fails, one by one, so that only those that failed end."""
        assert self._canvas is not None
        tickets = [self._ticket(row) for row in rows]
        try:
            parts = self._network, self._schedule, self._canvas, rows, tickets
            changes = StepBatch.of(*parts, self._capacity).changes()
        except Exception as error:
            if len(rows) > 1:
                return [event for row in rows for event in self._advance([row])]
            return [self._fail(rows[0], error)]
        self._capacity = _expected(changes)
        return [event for change in changes for event in self._apply(change)]

    def _apply(self, change: Change) -> list[Event]:
        """Write what a step did, on the device and on the host."""
        assert self._canvas is not None
        tokens, best = change.outcome.tokens, change.outcome.best
        if change.rows == list(range(self._num_rows)):
            index = slice(None)
        else:
            index = self._integers(change.rows)
        self._canvas.tokens[index] = tokens
        if best is not None:
            for stored, updated in zip(self._canvas.best, best, strict=True):
                stored[index] = updated
        edits = self._edits(change)
        new = change.written[-1]
        self._tokens[change.rows] = new
        is_known = np.all((new >= 0) & (new < self._schedule.vocab.size), axis=1)
        events: list[Event] = []
        frames, values = change.outcome.frames, change.values
        rows = zip(change.rows, change.flags, is_known.tolist(), frames, strict=True)
        for k, (row, (ends_phase, was_read, is_finite), is_valid, frame) in enumerate(rows):
            ticket, own = self._ticket(row), edits.get(k, [])
            if not (is_finite and is_valid):
                error = unusable_predictions() if is_valid else _unknown_tokens(ticket)
                events.append(self._fail(row, error))
                continue
            ticket.add(own, frame, bool(was_read))
            if values:
                length = len(ticket.request.tokens)
                ticket.values = tuple(value[k, :length] for value in values)
            ticket.advance(ends_phase=bool(ends_phase), is_scored=best is not None)
            if ticket.steps_done == ticket.num_steps:
                ticket.finish()
                self._slots[row] = None
            events.append(ticket.event(own, frame))
        return events

    def _edits(self, change: Change) -> dict[int, list[Edit]]:
        """Return the edits of rows that changed: by the step, then by restored states."""
        edits: dict[int, list[Edit]] = {}
        old, probability = self._tokens[change.rows], change.probability
        for new in change.written:
            for k, position in np.argwhere(old != new).tolist():
                ticket = self._ticket(change.rows[k])
                step, p = ticket.next_step, float(probability[k, position])
                tokens = int(old[k, position]), int(new[k, position])
                edit = Edit(ticket.steps_done, step.name, step.s, position, *tokens, p)
                edits.setdefault(k, []).append(edit)
            old, probability = new, np.zeros_like(probability)
        return edits

    def _fail(self, row: int, error: Exception) -> Event:
        ticket = self._ticket(row)
        ticket.error, self._slots[row] = error, None
        ticket.leave()
        return ticket.event([])

    def _ticket(self, row: int) -> Ticket:
        ticket = self._slots[row]
        assert ticket is not None, "only rows with a sequence are stepped"
        return ticket

    def _integers(self, values: list[int]) -> Int[Tensor, " K"]:
        return upload(values, torch.int64, self._device)


def _expected(changes: Sequence[Change]) -> int | None:
    """Return for how many positions the next step provides: on a GPU, twice those of this one."""
    numbers = [change.num_read for change in changes if change.num_read is not None]
    return 2 * max(numbers) if numbers else None


def _unknown_tokens(ticket: Ticket) -> ConfigError:
    return ConfigError(
        f"the step {ticket.next_step.name} must return ids of the vocabulary at positions that may "
        "change, got others. Correct the function of the step."
    )
