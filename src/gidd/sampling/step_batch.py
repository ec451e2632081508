"""One step of sequences that share a forward pass, whatever step each of them makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.common.devices import upload
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import BestState, Canvas, time_dtype
from gidd.sampling.forward_pass import ForwardPass
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Step
from gidd.sampling.prediction import Prediction
from gidd.sampling.ticket import Ticket
from gidd.sampling.trace import Frame

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from numpy.typing import NDArray


class _Outcome(NamedTuple):
    """What a step did to K sequences, on the device."""

    rows: list[int]
    tokens: Int[Tensor, "K L"]
    best: BestState | None

    table: Int[Tensor, "K columns"]
    """New tokens, tokens at the end of the phase if states were scored, bits of the probabilities,
    and flags: whether the step has converged, x_theta was read, and all of it was finite; on a GPU
    also how many positions were read, and whether they were too many."""

    num_flags: int
    is_last: list[bool]
    frames: list[Frame | None]
    values: tuple[Tensor, ...]


class Change(NamedTuple):
    """What a step did to K sequences; nothing is written yet."""

    outcome: _Outcome
    on_host: NDArray[np.int64]
    """`_Outcome.table`."""

    @property
    def rows(self) -> list[int]:
        """Rows of the lane."""
        return self.outcome.rows

    @property
    def values(self) -> tuple[Tensor, ...]:
        """`StepOutput.values`, on the CPU."""
        return tuple(value.cpu() for value in self.outcome.values)

    @property
    def written(self) -> list[NDArray[np.int64]]:
        """Tokens [K, L] after the step and, if states were scored, at the end of the phase."""
        return self._columns[:-1]

    @property
    def probability(self) -> NDArray[np.float32]:
        """x_theta of the tokens that the step drew [K, L]."""
        return self._columns[-1].astype(np.int32).view(np.float32)

    @property
    def flags(self) -> list[list[int]]:
        """Of each sequence: whether the phase ended, x_theta was read, and was finite."""
        flags = self.on_host[:, -self.outcome.num_flags :].tolist()
        rows = zip(flags, self.outcome.is_last, strict=True)
        return [
            [finished or last, was_read, finite] for (finished, was_read, finite, *_), last in rows
        ]

    @property
    def num_read(self) -> int | None:
        """Number of positions that were read, if a GPU was asked."""
        return None if self.outcome.num_flags == _NUM_FLAGS else int(self.on_host[0, -2])

    @property
    def overflows(self) -> bool:
        """Whether more positions were to be read than fit."""
        return self.outcome.num_flags > _NUM_FLAGS and bool(self.on_host[0, -1])

    @property
    def _columns(self) -> list[NDArray[np.int64]]:
        sequences = self.on_host[:, : -self.outcome.num_flags]
        return np.split(sequences, sequences.shape[1] // self.outcome.tokens.shape[1], axis=1)


_NUM_FLAGS = 3


@final
@dataclass(frozen=True)
class StepBatch:
    """Sequences in one forward pass; copies of the first pad it to a fixed number of rows."""

    schedule: MixingSchedule
    rows: list[int]
    """Rows of the lane, without the copies."""

    tickets: list[Ticket]
    canvas: Canvas
    t: Tensor
    s: Tensor
    forward: ForwardPass
    capacity: int | None
    """Expected number of positions to read, on a GPU; all if None."""

    @classmethod
    def of(
        cls,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        canvas: Canvas,
        rows: list[int],
        tickets: list[Ticket],
        capacity: int | None = None,
    ) -> Self:
        """Take the rows of some tickets from the canvas of a lane."""
        num_copies, device = len(canvas.seed) - len(rows), canvas.tokens.device
        copied = tickets + tickets[:1] * num_copies
        planned = [ticket.next_step for ticket in copied]
        ends = [[step.t for step in planned], [step.s for step in planned]]
        t, s = upload(ends, time_dtype(device), device)
        on_host = None
        if device.type != "cpu":
            on_host = torch.tensor(ends[::-1], dtype=torch.float64)
        places = rows + rows[:1] * num_copies
        integers = [places, [ticket.steps_done for ticket in copied]]
        index, step_index = upload(integers, torch.int64, device)
        if places == list(range(len(canvas.seed))):
            part = replace(canvas, tokens=canvas.tokens.clone())  # frames keep it
        else:
            part = canvas.rows(index)
        part = replace(part, step_index=step_index, times_on_host=on_host)
        length = canvas.tokens.shape[1]
        is_padded = any(len(ticket.request.tokens) < length for ticket in tickets)
        forward = ForwardPass(network, part.tokens, t, part.valid if is_padded else None)
        return cls(schedule, rows, tickets, part, t, s, forward, capacity)

    def changes(self) -> list[Change]:
        """Call each step once, with all sequences that make it."""
        groups: dict[Step, list[int]] = {}
        for k, ticket in enumerate(self.tickets):
            groups.setdefault(ticket.next_step.step, []).append(k)
        parts = groups.items()
        changes = _on_host([self._outcome(step, own, self.capacity) for step, own in parts])
        if any(change.overflows for change in changes):  # more was read than in the last step
            changes = _on_host([self._outcome(step, own, None) for step, own in parts])
        return changes

    def _outcome(self, step: Step, members: list[int], capacity: int | None) -> _Outcome:
        num, canvas, t, s, index = len(members), self.canvas, self.t, self.s, None
        tickets = [self.tickets[k] for k in members]
        if num < len(self.rows):
            # padded again: the bits of a step must not depend on how many others make it
            copied = members + members[:1] * (len(canvas.seed) - num)
            index = upload(copied, torch.int64, t.device)
            times = None if canvas.times_on_host is None else canvas.times_on_host[:, copied]
            canvas = replace(canvas.rows(index), times_on_host=times)
            t, s = t[index], s[index]
        prediction = Prediction(
            self.forward,
            self.schedule.vocab.size,
            [ticket.request.processors for ticket in tickets],
            rows=index,
            num_rows=num,
            capacity=capacity,
        )
        output = step(self.schedule, s, t, canvas, prediction)
        output.check(canvas, tickets[0].next_step.name)
        output = output.first(num)
        was_read, static = prediction.was_read[:num], prediction.static
        facts = [] if static is None else [static.num_read, static.overflows]
        frames = _frames(tickets, prediction)  # may read more
        is_last = [ticket.steps_done + 1 == ticket.phase_end for ticket in tickets]
        finished = output.finished
        finished = torch.zeros_like(was_read) if finished is None else finished
        written = [torch.where(canvas.protected[:num], canvas.tokens[:num], output.tokens)]
        best = output.best
        if best is None and any(ticket.is_scored for ticket in tickets):
            best = canvas.best.rows(slice(num))
        if best is not None:
            ends = finished | upload(is_last, torch.bool, t.device)
            restored, best = _restore(written[0], best, ends)
            written.append(restored)
        probability = output.probability
        bits = torch.zeros_like(written[0], dtype=torch.int32)
        if probability is not None:
            bits = probability.float().view(torch.int32)
        flags = torch.stack([finished, was_read, prediction.is_finite[:num]], 1).long()
        columns = [*written, bits.long(), flags, *(fact.expand(num, 1).long() for fact in facts)]
        return _Outcome(
            [self.rows[k] for k in members],
            written[-1],
            best,
            torch.cat(columns, 1),
            _NUM_FLAGS + len(facts),
            is_last,
            frames,
            output.values,
        )


def _on_host(outcomes: Sequence[_Outcome]) -> list[Change]:
    """Copy what steps did to the host: one copy, and one wait for a GPU."""
    if len(outcomes) == 1:
        return [Change(outcomes[0], outcomes[0].table.cpu().numpy())]
    tables = [outcome.table for outcome in outcomes]
    numbers = torch.cat([table.flatten() for table in tables]).cpu().numpy()
    parts = np.split(numbers, np.cumsum([table.numel() for table in tables])[:-1])
    return [
        Change(outcome, part.reshape(outcome.table.shape))
        for outcome, part in zip(outcomes, parts, strict=True)
    ]


def _restore(
    tokens: Int[Tensor, "K L"], best: BestState, ends: Bool[Tensor, " K"]
) -> tuple[Int[Tensor, "K L"], BestState]:
    """Return the best state of sequences whose phase ends, with no score from then on."""
    is_restored = ends & (best.score >= 0)
    return torch.where(is_restored[:, None], best.tokens, tokens), BestState(
        best.tokens,
        torch.where(is_restored, -1, best.score),
        torch.where(is_restored, 0, best.age),
    )


def _frames(tickets: Sequence[Ticket], prediction: Prediction) -> list[Frame | None]:
    """Return the state and the prediction before the step, of tickets that record them."""
    frames: list[Frame | None] = [None] * len(tickets)
    if not any(ticket.record_frames for ticket in tickets):
        return frames
    observation = prediction.observe()
    for k, ticket in enumerate(tickets):
        if ticket.record_frames:
            planned, length = ticket.next_step, len(ticket.request.tokens)
            values = (value[k, :length] for value in (prediction.z, *observation))
            frames[k] = Frame(ticket.steps_done, planned.name, planned.t, *values)
    return frames
