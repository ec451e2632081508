"""One step of sequences that share a forward pass, whatever step each of them makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import BestState, Canvas, StepOutput, time_dtype
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Step
from gidd.sampling.prediction import ForwardPass, Prediction
from gidd.sampling.ticket import Ticket
from gidd.sampling.trace import Frame

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from numpy.typing import NDArray

_NUM_FLAGS = 3


class Change(NamedTuple):
    """What a step did to K sequences; nothing is written yet."""

    rows: list[int]
    """Rows of the lane."""

    tokens: Int[Tensor, "K L"]
    best: BestState | None

    on_host: NDArray[np.int64]
    """[K, columns]: new tokens, tokens at the end of the phase if states were scored, bits of the
    probabilities, and whether the phase ended, x_theta was read, and all of it was finite."""

    frames: list[Frame | None]

    values: tuple[Tensor, ...]
    """`StepOutput.values`, on the CPU."""

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
        return self.on_host[:, -_NUM_FLAGS:].tolist()

    @property
    def _columns(self) -> list[NDArray[np.int64]]:
        sequences = self.on_host[:, :-_NUM_FLAGS]
        return np.split(sequences, sequences.shape[1] // self.tokens.shape[1], axis=1)


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

    @classmethod
    def of(
        cls,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        canvas: Canvas,
        rows: list[int],
        tickets: list[Ticket],
    ) -> Self:
        """Take the rows of some tickets from the canvas of a lane."""
        num_copies, device = len(canvas.seed) - len(rows), canvas.tokens.device
        copied = tickets + tickets[:1] * num_copies
        planned = [ticket.next_step for ticket in copied]
        ends = [[step.t for step in planned], [step.s for step in planned]]
        t, s = torch.tensor(ends, dtype=time_dtype(device), device=device)
        index = torch.tensor(rows + rows[:1] * num_copies, device=device)
        step_index = torch.tensor([ticket.steps_done for ticket in copied], device=device)
        part = replace(canvas.rows(index), step_index=step_index)
        length = canvas.tokens.shape[1]
        is_padded = any(len(ticket.request.tokens) < length for ticket in tickets)
        forward = ForwardPass(network, part.tokens, t, part.valid if is_padded else None)
        return cls(schedule, rows, tickets, part, t, s, forward)

    def changes(self) -> list[Change]:
        """Call each step once, with all sequences that make it."""
        groups: dict[Step, list[int]] = {}
        for k, ticket in enumerate(self.tickets):
            groups.setdefault(ticket.next_step.step, []).append(k)
        return [self._change(step, members) for step, members in groups.items()]

    def _change(self, step: Step, members: list[int]) -> Change:
        num, canvas, t, s, index = len(members), self.canvas, self.t, self.s, None
        tickets = [self.tickets[k] for k in members]
        if num < len(self.rows):
            # padded again: the bits of a step must not depend on how many others make it
            copied = members + members[:1] * (len(canvas.seed) - num)
            index = torch.tensor(copied, device=t.device)
            canvas, t, s = canvas.rows(index), t[index], s[index]
        prediction = Prediction(
            self.forward,
            self.schedule.vocab.size,
            [ticket.request.processors for ticket in tickets],
            rows=index,
            num_rows=num,
        )
        output = step(self.schedule, s, t, canvas, prediction).first(num)
        was_read = prediction.was_read[:num]
        frames = _frames(tickets, prediction)  # may read more
        ends = _phase_ends(tickets, output, t.device)
        written = [torch.where(canvas.protected[:num], canvas.tokens[:num], output.tokens)]
        best = output.best
        if best is None and any(ticket.is_scored for ticket in tickets):
            best = canvas.best.rows(slice(num))
        if best is not None:
            restored, best = _restore(written[0], best, ends)
            written.append(restored)
        probability = output.probability
        bits = torch.zeros_like(written[0], dtype=torch.int32)
        if probability is not None:
            bits = probability.float().view(torch.int32)
        flags = torch.stack([ends, was_read, prediction.is_finite[:num]], 1)
        return Change(
            [self.rows[k] for k in members],
            written[-1],
            best,
            torch.cat([*written, bits.long(), flags.long()], 1).cpu().numpy(),  # one copy
            frames,
            tuple(value.cpu() for value in output.values),
        )


def _phase_ends(
    tickets: Sequence[Ticket], output: StepOutput, device: torch.device
) -> Bool[Tensor, " K"]:
    """Whether the phase of each sequence ends with this step."""
    is_last = [ticket.steps_done + 1 == ticket.phase_end for ticket in tickets]
    ends = torch.tensor(is_last, device=device)
    return ends if output.finished is None else ends | output.finished


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
