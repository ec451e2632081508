"""The loop: every sequence makes the moves of its plan, in any company, with the same result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.plan import Plan, Step
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import Processor
from gidd.sampling.program import Program
from gidd.sampling.request import Request, Sample, end_at
from gidd.sampling.trace import Edit, Frame, Record

if TYPE_CHECKING:
    from jaxtyping import Int


class StepEvent(NamedTuple):
    """One move of every sequence that was still active, as `on_step` sees it."""

    canvas: Canvas
    """The state after it."""

    rows: Int[Tensor, " K"]
    """The sequences that moved."""

    before: Int[Tensor, "K L"]
    """Their tokens before."""

    num_steps: Int[Tensor, " B"]
    """The length of every plan; `canvas.step_index` has come this far when a sequence is done."""

    record: Record | None
    """Edits and frames so far, by row of the canvas."""

    members: Sequence[int] = ()
    """Which request each sequence of the canvas is."""


OnStep = Callable[[StepEvent], None]


@final
class Engine:
    """A network, its schedule, and how many sequences go through the network at once.

    Every network call has exactly `rows_per_call` sequences of one length; if fewer are left, the
    last call is filled up with copies. The shape of a matrix product decides its last bits, so this
    is what makes a sequence come out bit by bit the same alone and in a batch. With 1 nothing else
    is needed, nothing is wasted, and on a CPU it is as fast as any. Give a GPU as many as it needs
    to be busy; then a row must also have the same bits wherever it stands in a batch, which kernels
    for one shape have as a rule and the tests check.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        schedule: MixingSchedule,
        *,
        rows_per_call: int = 1,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if rows_per_call < 1:
            raise ConfigError(
                f"engine.rows_per_call must be at least 1, got {rows_per_call}. It is the number "
                "of sequences in one network call."
            )
        self.network = network
        self.schedule = schedule
        self.rows_per_call = rows_per_call
        self.max_length = max_length
        self.device = torch.device(device)

    def sample(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Sample]:
        """Carry out all requests; the result of each depends on no other.

        Args:
            requests: Sequences of any lengths, with plans of any lengths.
            on_step: Called after each round of moves. Sequences of one length and the same
                processors move together; lengths come one after the other.
            record_frames: Keep what the network thinks of every token before every move. Costs a pass of
                the head, and a network call where a move would have needed none.
        """
        groups: dict[tuple[int, tuple[Processor, ...]], list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            request.check(self.schedule.vocab, self.max_length)
            groups[len(request.tokens), request.processors].append(i)
        samples: dict[int, Sample] = {}
        for (_, processors), members in groups.items():
            group = [requests[i] for i in members]
            canvas, plans = self._canvas(group), [request.plan for request in group]
            record = Record(frames=defaultdict(list) if record_frames else None)
            tell = on_step and partial(_tell, on_step, members)
            self.run(canvas, plans, processors=processors, record=record, on_step=tell)
            edits = record.edits.by_row([[(m.name, m.s) for m in plan.steps] for plan in plans])
            for row, i in enumerate(members):
                frames = (record.frames or {}).get(row, [])
                samples[i] = _sample(requests[i], canvas, row, edits[row], frames)
        return [samples[i] for i in range(len(requests))]

    @torch.no_grad()
    def run(
        self,
        canvas: Canvas,
        plan: Plan | Sequence[Plan],
        *,
        processors: Sequence[Processor] = (),
        record: Record | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        """Move all sequences of a canvas to the end of their plans (one, or one each), in place."""
        plans = [plan] * len(canvas.tokens) if isinstance(plan, Plan) else plan
        program = Program.of(plans, canvas)
        while phases := program.active(canvas):
            moved = torch.cat([rows for _, rows in phases])
            before = canvas.tokens[moved]
            for step, rows in phases:
                for part in rows.split(self.rows_per_call):
                    self._step(canvas, program, step, part, processors, record)
            if on_step:
                on_step(StepEvent(canvas, moved, before, program.num_steps, record))

    def _step(
        self,
        canvas: Canvas,
        program: Program,
        step: Step,
        rows: Int[Tensor, " K"],
        processors: Sequence[Processor],
        record: Record | None,
    ) -> None:
        """One move of at most `rows_per_call` sequences, in a batch of exactly that many."""
        num = len(rows)
        filled = torch.cat([rows, rows[:1].expand(self.rows_per_call - num)])
        part = canvas.rows(filled)
        t, s = program.times(part, filled)
        size = self.schedule.vocab.size
        prediction = Prediction(self.network, t, part.tokens, size, processors)
        change = step(self.schedule, s, t, part, prediction)
        if change.best is not None and program.alone(part, filled).any():
            raise ConfigError(
                "a corrector that returns the best state it has seen needs two calls in a row: one "
                "judges the text, the next what was changed. Got a single call; ask for 2 or more, "
                "in a phase of their own: stay(corrector, calls)."
            )
        following, leaves = program.after(part, filled, change.finished)
        canvas.calls[rows] += prediction.asked[:num]
        if record is not None and record.frames is not None:
            seen = prediction.observe()
            for k, row in enumerate(rows.tolist()):
                number = int(part.step_index[k])
                planned, values = program.planned_step(row, number), (value[k] for value in seen)
                frame = Frame(number, planned.name, planned.t, part.tokens[k], *values)
                record.frames[row].append(frame)
        log = record.edits if record is not None else None
        canvas.accept(rows, change.first(num), s[:num], log)
        canvas.restore_best(rows[leaves[:num]], log)
        canvas.step_index[rows] = following[:num]

    def _canvas(self, requests: Sequence[Request]) -> Canvas:
        given = [[-1 if v is None else v for v in request.tokens] for request in requests]
        tokens = torch.tensor(given, device=self.device)
        return Canvas.start(
            self.schedule,
            tokens.clamp_min(0),
            torch.tensor([request.are_protected for request in requests], device=self.device),
            tokens < 0,
            torch.tensor([request.seed for request in requests], device=self.device),
            torch.tensor([request.sample_index for request in requests], device=self.device),
        )


def _tell(on_step: OnStep, members: Sequence[int], event: StepEvent) -> None:
    on_step(event._replace(members=members))


def _sample(
    request: Request, canvas: Canvas, row: int, edits: Sequence[Edit], frames: Sequence[Frame]
) -> Sample:
    tokens: list[int] = canvas.tokens[row].tolist()
    return Sample(
        tokens=tuple(tokens),
        text=end_at(request.stop, tokens, request.are_protected),
        protected=request.are_protected,
        calls=int(canvas.calls[row]),
        edits=tuple(edits),
        frames=tuple(frames),
    )
