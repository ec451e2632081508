"""Sequences of one padded length: which are active, and one step of them with one forward pass."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gidd.common.devices import upload
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.sampling.choices import Constrained
from gidd.sampling.guidance import guided
from gidd.sampling.network import UNUSABLE_PREDICTIONS, DenoisingNetwork
from gidd.sampling.plan import Step
from gidd.sampling.predict import NetworkPredict, Predict, processed
from gidd.sampling.request import Edit, Frame
from gidd.sampling.state import State, start, time_dtype
from gidd.sampling.ticket import Event, Ticket, limit_reached

if TYPE_CHECKING:
    from jaxtyping import Int
    from numpy.typing import NDArray


_Entry = tuple[int, int, int, Ticket]
"""Place of a sequence in a queue: the lowest is first; the number before the ticket is its own."""


def _age(ticket: Ticket, *, is_next: bool = False) -> _Entry:
    return -ticket.priority, not is_next, ticket.number, ticket


class LengthBucket:
    """At most `rows` active sequences, and a queue of sequences that wait for a free row.

    Every forward pass has exactly `rows` sequences, or the smallest of `row_buckets` that is enough
    for the active ones, padded with copies. Sequences with different steps share it; each step
    function is called once.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        rows: int,
        length: int,
        device: torch.device,
        row_buckets: Sequence[int] = (),
    ) -> None:
        self._network, self._schedule, self._device = network, schedule, device
        self._num_rows, self.length = rows, length
        self._row_buckets = sorted({*row_buckets, rows})
        self._waiting: dict[Ticket, tuple[_Entry, _Entry]] = {}
        """Waiting sequences, and their places in the two queues below, which are sorted."""
        self._oldest: list[_Entry] = []
        self._shortest: list[_Entry] = []
        self._parked: dict[Ticket, tuple[State, NDArray[np.int64]]] = {}
        """State of waiting sequences that were active before."""
        self._slots: list[Ticket | None] = [None] * rows
        self._state: State | None = None
        self._tokens = np.zeros((rows, length), dtype=np.int64)

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait for a row."""
        return len(self._waiting)

    def num_rows(self, num_active: int) -> int:
        """Return the number of sequences in a forward pass of some active ones."""
        return next(rows for rows in self._row_buckets if rows >= num_active)

    def _work_left(self, ticket: Ticket) -> _Entry:
        steps = ticket.num_steps - ticket.steps_done
        return -ticket.priority, steps * self.length, ticket.number, ticket

    def first_places(self) -> tuple[_Entry, _Entry] | None:
        """Return the places of the sequence with the least work left and of the oldest one.

        Active and waiting ones of the highest priority are compared; None if there are none.
        """
        active = list(self._active_tickets())
        shortest = [*map(self._work_left, active), *self._shortest[:1]]
        oldest = [*map(_age, active), *self._oldest[:1]]
        return (min(shortest), min(oldest)) if oldest else None

    def _active_tickets(self) -> Iterator[Ticket]:
        return (ticket for ticket in self._slots if ticket is not None and not ticket.is_done)

    def add(self, ticket: Ticket, *, is_next: bool = False) -> None:
        """Put a sequence into the queue; `is_next`: before all others of its priority."""
        self._waiting[ticket] = places = _age(ticket, is_next=is_next), self._work_left(ticket)
        for queue, place in zip((self._oldest, self._shortest), places, strict=True):
            insort(queue, place)

    def _leave_queue(self, ticket: Ticket) -> None:
        places = self._waiting.pop(ticket)
        for queue, place in zip((self._oldest, self._shortest), places, strict=True):
            del queue[bisect_left(queue, place)]

    def move_to_front(self, ticket: Ticket) -> None:
        """Let a sequence have the next free row, if it still waits for one."""
        if ticket in self._waiting:
            self._leave_queue(ticket)
            self.add(ticket, is_next=True)

    def remove(self, ticket: Ticket) -> None:
        """Take a sequence that is done out of the queue."""
        if ticket in self._waiting:
            self._leave_queue(ticket)
            self._parked.pop(ticket, None)

    def best_tokens(self, ticket: Ticket) -> tuple[int, ...]:
        """Return the best state so far, if there is one, else the tokens as they are now."""
        state, row = self._state, 0
        if ticket in self._parked:
            state, _ = self._parked[ticket]
        elif ticket in self._slots:
            row = self._slots.index(ticket)
        else:
            return ticket.tokens
        if state is None or state.best_score[row] < 0:
            return ticket.tokens
        return tuple(state.best[row, : len(ticket.request.tokens)].tolist())

    @property
    def active(self) -> list[int]:
        """Rows with a sequence."""
        return [row for row, ticket in enumerate(self._slots) if ticket is not None]

    @torch.no_grad()
    def admit(self, first: Ticket) -> list[Event]:
        """Let a sequence be active, and fill free rows from the queue.

        If there is no free row, the active sequence with most steps left waits again. Returns the
        ends of sequences with no step to make.
        """
        for row, ticket in enumerate(self._slots):
            if ticket is not None and ticket.is_done:
                ticket.detach()
                self._slots[row] = None
        if first in self._waiting and None not in self._slots:
            self._park(max(self._active_tickets(), key=self._work_left))
        free = [row for row, ticket in enumerate(self._slots) if ticket is None]
        chosen = [first] if first in self._waiting else []
        chosen += [entry[-1] for entry in self._oldest[: len(free)] if entry[-1] is not first]
        chosen = chosen[: len(free)]
        for ticket in chosen:
            self._leave_queue(ticket)
        parked = [ticket for ticket in chosen if ticket in self._parked]
        for row, ticket in zip(free, parked, strict=False):
            self._resume(row, ticket)
        new = [ticket for ticket in chosen if ticket not in parked]
        events = self._start_or_fail(free[len(parked) : len(chosen)], new) if new else []
        for row, ticket in enumerate(self._slots):
            if ticket is not None and ticket.reaches_limit():
                if ticket.limits.on_limit == "finish":
                    ticket.expire()  # the next step is the last
                else:
                    events.append(self._fail(row, limit_reached(ticket)))
        return events

    def _park(self, ticket: Ticket) -> None:
        """Let an active sequence wait, and keep its state."""
        row = self._slots.index(ticket)
        index = self._integers([row])
        assert self._state is not None
        self._parked[ticket] = self._state.rows(index), self._tokens[row].copy()
        ticket.detach()
        self._slots[row] = None
        self.add(ticket)

    def _resume(self, row: int, ticket: Ticket) -> None:
        """Give a row to a sequence that was active before."""
        state, self._tokens[row] = self._parked.pop(ticket)
        assert self._state is not None
        self._state.put(self._integers([row]), state)
        ticket.row = self._tokens[row, : len(ticket.request.tokens)]
        self._slots[row] = ticket

    def _start_or_fail(self, rows: list[int], tickets: list[Ticket]) -> list[Event]:
        """Start sequences; if that fails, one by one, so that only those that failed end."""
        try:
            self._start(rows, tickets)
        except (Exception, SystemExit) as error:
            if len(rows) == 1:
                return [tickets[0].fail(error)]
            alone = zip(rows, tickets, strict=True)
            return [event for row, one in alone for event in self._start_or_fail([row], [one])]
        events: list[Event] = []
        for row, ticket in zip(rows, tickets, strict=True):
            ticket.row = self._tokens[row, : len(ticket.request.tokens)]
            if all(ticket.request.are_protected) or not ticket.num_steps:
                ticket.finish()
                events.append(ticket.event([]))
            else:
                self._slots[row] = ticket
        return events

    def _start(self, rows: list[int], tickets: Sequence[Ticket]) -> None:
        """Put sequences before their first step into some rows."""
        shape = len(tickets), self.length
        tokens, protected = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
        valid = np.zeros(shape, np.bool_)
        for k, request in enumerate(ticket.request for ticket in tickets):
            length = len(request.tokens)
            tokens[k, :length] = [-1 if v is None else v for v in request.tokens]
            protected[k, :length], valid[k, :length] = request.are_protected, True
        blank = tokens < 0
        state = start(
            self._schedule,
            torch.from_numpy(tokens).to(self._device),
            torch.from_numpy(protected).to(self._device),
            torch.from_numpy(blank).to(self._device) if blank.any() else None,
            torch.from_numpy(valid).to(self._device),
            self._integers([ticket.request.seed for ticket in tickets]),
            self._integers([ticket.request.sample_index for ticket in tickets]),
        )
        if self._state is None:
            # rows without a sequence hold copies, which no step reads
            self._state = state.rows(self._integers([0] * self._num_rows))
        self._state.put(self._integers(rows), state)
        self._tokens[rows] = state.tokens.cpu().numpy()

    @torch.no_grad()
    def advance(self, rows: list[int]) -> list[Event]:
        """Step some rows; if that fails, one by one, so that only the rows that failed end."""
        assert self._state is not None
        tickets = [self._ticket(row) for row in rows]
        for ticket in tickets:
            ticket.is_stepping = True
        try:
            network, num_rows = self._network, self.num_rows(len(rows))
            batch = StepBatch(network, self._schedule, self._state, rows, tickets, num_rows)
            groups: dict[Step, list[int]] = {}
            for k, ticket in enumerate(tickets):
                groups.setdefault(ticket.next_step.step, []).append(k)
            changes = [batch.call(step, members) for step, members in groups.items()]
            changes = _copy_to_host(changes)
        except (Exception, SystemExit) as error:
            if len(rows) > 1:
                return [event for row in rows for event in self.advance([row])]
            return [self._fail(rows[0], error)]
        return [event for change in changes for event in self._apply(change)]

    def _apply(self, change: Change) -> list[Event]:
        """Write the result of a step, on the device and on the host."""
        assert self._state is not None
        is_full = change.rows == list(range(self._num_rows))
        index = slice(None) if is_full else self._integers(change.rows)
        for name, values in change.stored.items():
            getattr(self._state, name)[index] = values
        edits = self._edits(change)
        new = change.numbers["end"]
        self._tokens[change.rows] = new
        is_known = np.all((new >= 0) & (new < self._schedule.vocab.size), axis=1)
        events: list[Event] = []
        values = tuple(value.cpu() for value in change.values)
        flags = change.numbers["flags"].tolist()
        rows = zip(change.rows, flags, is_known.tolist(), change.frames, strict=True)
        for k, (row, (converged, was_read, is_finite), is_valid, frame) in enumerate(rows):
            ticket, own = self._ticket(row), edits.get(k, [])
            if not (is_finite and is_valid):
                unknown = ConfigError(
                    f"the step {ticket.next_step.name} must return ids of the vocabulary at "
                    "positions that may change, got other numbers. Correct its function."
                )
                unusable = CheckpointError(UNUSABLE_PREDICTIONS)
                events.append(self._fail(row, unusable if is_valid else unknown))
                continue
            ticket.add(own, frame, bool(was_read))
            if values:
                length = len(ticket.request.tokens)
                ticket.values = tuple(value[k, :length] for value in values)
            ends_phase = bool(converged) or ticket.is_at_phase_end
            ticket.advance(ends_phase=ends_phase)
            if ticket.steps_done == ticket.num_steps:
                ticket.finish()
                self._slots[row] = None
            events.append(ticket.event(own, frame))
        return events

    def _edits(self, change: Change) -> dict[int, list[Edit]]:
        """Return the edits of rows that changed: by the step, then by restored states."""
        edits: dict[int, list[Edit]] = {}
        old, numbers = self._tokens[change.rows], change.numbers
        probability = numbers["bits"].astype(np.int32).view(np.float32)
        for new in (numbers["tokens"], numbers["end"]):
            for k, position in np.argwhere(old != new).tolist():
                ticket = self._ticket(change.rows[k])
                if not ticket.record_edits:
                    continue
                step, p = ticket.next_step, float(probability[k, position])
                tokens = int(old[k, position]), int(new[k, position])
                edit = Edit(ticket.steps_done, step.name, step.s, position, *tokens, p)
                edits.setdefault(k, []).append(edit)
            old, probability = new, np.zeros_like(probability)
        return edits

    def _fail(self, row: int, error: Exception | SystemExit) -> Event:
        ticket, self._slots[row] = self._ticket(row), None
        return ticket.fail(error)

    def _ticket(self, row: int) -> Ticket:
        ticket = self._slots[row]
        assert ticket is not None, "only rows with a sequence are stepped"
        return ticket

    def _integers(self, values: list[int]) -> Int[Tensor, " K"]:
        return upload(values, torch.int64, self._device)


class Change(NamedTuple):
    """The result of a step of K sequences; nothing is written to the state yet."""

    rows: list[int]
    """Rows of the bucket."""
    stored: dict[str, Tensor]
    """Fields of the state after the step, and what is restored at the end of a phase."""
    numbers: dict[str, Any]
    """What the host reads, tensors of the device and after `_copy_to_host` arrays:

    - `tokens` after the step, and those at its `end`, where the best may be restored, [K, L];
    - the `bits` of x_theta of the tokens that the step drew, [K, L];
    - `flags` [K, 3]: whether the step has converged, x_theta was read, and all of it was finite.
    """
    frames: list[Frame | None]
    values: tuple[Tensor, ...]
    """`State.values`."""


def _copy_to_host(changes: list[Change]) -> list[Change]:
    """Copy the numbers of all steps to the host, with one synchronization."""
    tensors = [tensor for change in changes for tensor in change.numbers.values()]
    numbers = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = iter(numbers.split([tensor.numel() for tensor in tensors]))
    return [
        change._replace(
            numbers={k: next(parts).view(t.shape).numpy() for k, t in change.numbers.items()}
        )
        for change in changes
    ]


class StepBatch:
    """Sequences in one forward pass; copies of the first pad it to a fixed number of rows."""

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        state: State,
        rows: list[int],
        tickets: list[Ticket],
        num_rows: int,
    ) -> None:
        """Take the rows of some tickets from the state of a bucket."""
        self._schedule, self._rows, self._tickets = schedule, rows, tickets
        num_copies, device = num_rows - len(rows), state.tokens.device
        copied = tickets + tickets[:1] * num_copies
        planned = [ticket.next_step for ticket in copied]
        ends = [[step.t for step in planned], [step.s for step in planned]]
        self._t, self._s = upload(ends, time_dtype(device), device)
        places = rows + rows[:1] * num_copies
        integers = [places, [ticket.steps_done for ticket in copied]]
        index, step_index = upload(integers, torch.int64, device)
        if places == list(range(len(state.seed))):
            part = state._replace(tokens=state.tokens.clone())  # frames keep it
        else:
            part = state.rows(index)
        self._state = part._replace(step_index=step_index)
        requests = [ticket.request for ticket in copied]
        self._network = NetworkPredict(network, schedule.vocab.size, num_rows, device)
        self._predict: Predict = self._network
        guidances = [request.guidance for request in requests if request.guidance is not None]
        if requests[0].is_guided:  # and so are the others
            self._predict = guided(self._predict, guidances)
        if any(request.processors for request in requests):
            self._predict = processed(self._predict, [r.processors for r in requests], requests)
        self._constrained = None
        if any(request.choices for request in requests):
            choices = [request.choices for request in requests]
            self._constrained = Constrained(self._predict, schedule, self._s, choices)
            self._predict = self._constrained

    def _of(self, members: list[int]) -> Predict:
        """Return a function that reads some sequences only."""
        index = upload(members, torch.int64, self._t.device)
        is_member = torch.zeros_like(self._state.is_converged).index_fill(0, index, value=True)
        return lambda state, t, where: self._predict(state, t, where & is_member[:, None])

    def call(self, step: Step, members: list[int]) -> Change:
        """Call a step with the sequences that make it.

        It gets all of them, whoever makes it: its bits must not depend on how many others do.
        """
        state, t, s, num = self._state, self._t, self._s, len(members)
        tickets = [self._tickets[k] for k in members]
        predict = self._predict if num == len(state.seed) else self._of(members)
        output = step(self._schedule, s, t, state, predict)
        output.check(state, tickets[0].next_step.name)
        tokens = torch.where(state.protected, state.tokens, output.tokens)
        if self._constrained is not None and any(ticket.next_step.s == 0 for ticket in tickets):
            tokens = self._constrained.finish(state, t, tokens)
        was_read = self._network.was_read.clone()
        frames = _frames(tickets, members, state, t, predict)  # may read more
        is_last = torch.zeros_like(was_read)
        ends = [k for k in members if self._tickets[k].is_at_phase_end]
        is_last[upload(ends, torch.int64, t.device)] = True
        # at the end of a phase that scores states the best is restored, with no score from then on
        is_restored = (is_last | output.is_converged) & (output.best_score >= 0)
        end = torch.where(is_restored[:, None], output.best, tokens)
        numbers = {
            "tokens": tokens,
            "end": end,
            "bits": output.probability.float().view(torch.int32),
            "flags": torch.stack([output.is_converged, was_read, self._network.is_finite], 1),
        }
        stored = {
            "tokens": end,
            "best_score": torch.where(is_restored, -1, output.best_score),
            "best_age": torch.where(is_restored, 0, output.best_age),
        }
        if output.best is not state.best:
            stored["best"] = output.best
        index = (
            slice(num) if members == list(range(num)) else upload(members, torch.int64, t.device)
        )
        return Change(
            [self._rows[k] for k in members],
            {name: value[index] for name, value in stored.items()},
            {name: value[index] for name, value in numbers.items()},
            frames,
            tuple(value[index] for value in output.values),
        )


def _frames(
    tickets: Sequence[Ticket], members: list[int], state: State, t: Tensor, predict: Predict
) -> list[Frame | None]:
    """Return the state and the prediction before the step, for tickets that record frames."""
    frames: list[Frame | None] = [None] * len(tickets)
    recorded = [k for k, ticket in zip(members, tickets, strict=True) if ticket.record_frames]
    if not recorded:
        return frames
    everywhere = torch.zeros_like(state.protected)
    everywhere[upload(recorded, torch.int64, t.device)] = True
    rows = predict(state, t, everywhere)
    observed = state.tokens, rows.current, rows.entropy, rows.top, rows.top_probability
    for i, (k, ticket) in enumerate(zip(members, tickets, strict=True)):
        if ticket.record_frames:
            planned, length = ticket.next_step, len(ticket.request.tokens)
            values = (value[k, :length] for value in observed)
            frames[i] = Frame(ticket.steps_done, planned.name, planned.t, *values)
    return frames
