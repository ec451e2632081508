"""The sampling loop: step every sequence through its plan, with the same result in any batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas
from gidd.sampling.network import DenoisingNetwork, require_finite_predictions
from gidd.sampling.plan import Plan, Step
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import Processor
from gidd.sampling.request import Request, Sample
from gidd.sampling.trace import Frame, Record

if TYPE_CHECKING:
    from jaxtyping import Int


class StepEvent(NamedTuple):
    """One step of every active sequence; the argument of `on_step`."""

    canvas: Canvas
    """The state after the step."""

    rows: Int[Tensor, " K"]
    """The sequences that made a step."""

    before: Int[Tensor, "K L"]
    """Their tokens before the step."""

    num_steps: Int[Tensor, " B"]
    """Steps in every sequence's plan; a sequence is done when `canvas.step_index` equals it."""

    record: Record | None
    """Edits and frames so far, by row of the canvas."""

    members: Sequence[int] = ()
    """Index of the request of each sequence of the canvas."""


OnStep = Callable[[StepEvent], None]


@final
class Engine:
    """A network, its schedule and the batch size of a forward pass.

    Every forward pass has exactly `rows_per_call` sequences of one length; an incomplete batch is
    padded with copies. The last bits of a matrix product depend on its shape, so the fixed shape
    makes a sequence bit-identical alone and in a batch. `rows_per_call=1` wastes nothing and is as
    fast as any on a CPU. On a GPU choose the batch size that saturates it; then a row must also
    have the same bits at every place in the batch. Kernels usually guarantee that for one shape,
    and the tests check it.
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
                "of sequences in one forward pass."
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
        """Sample all requests; the result of each does not depend on the others.

        Args:
            requests: Sequences of any lengths, with plans of any lengths.
            on_step: Called after each round of steps. Sequences of one length with the same
                processors are stepped together; such groups run one after the other.
            record_frames: Record state and predictions before every step. Costs a pass of the head
                per step, and a forward pass where the step would have needed none.
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
            self.run(canvas, plans, processors, record=record, on_step=on_step, members=members)
            edits = record.edits.by_row([[(p.name, p.s) for p in plan.steps] for plan in plans])
            for row, i in enumerate(members):
                tokens = tuple(canvas.tokens[row].tolist())
                samples[i] = Sample(
                    tokens=tokens,
                    text=requests[i].truncate_at_stop(tokens),
                    protected=requests[i].are_protected,
                    calls=int(canvas.calls[row]),
                    edits=tuple(edits[row]),
                    frames=tuple((record.frames or {}).get(row, ())),
                )
        return [samples[i] for i in range(len(requests))]

    @torch.no_grad()
    def run(
        self,
        canvas: Canvas,
        plan: Plan | Sequence[Plan],
        processors: Sequence[Processor] = (),
        *,
        record: Record | None = None,
        on_step: OnStep | None = None,
        members: Sequence[int] = (),
    ) -> None:
        """Step all sequences of a canvas to the end of their plans (one, or one each), in place.

        Raises `CheckpointError` at the end if any prediction was not finite.
        """
        is_finite = canvas.protected.new_ones(())
        plans = [plan] * len(canvas.tokens) if isinstance(plan, Plan) else plan
        num_steps = canvas.step_index.new_tensor([len(plan) for plan in plans])
        while phases := _active(canvas, plans):
            stepped = torch.cat([rows for _, rows in phases])
            before = canvas.tokens[stepped]
            for step, rows in phases:
                for part in rows.split(self.rows_per_call):
                    prediction = self._step(canvas, plans, step, part, processors, record)
                    is_finite = is_finite & prediction.is_finite
            if on_step:
                on_step(StepEvent(canvas, stepped, before, num_steps, record, members))
        require_finite_predictions(bool(is_finite))

    def _step(
        self,
        canvas: Canvas,
        plans: Sequence[Plan],
        step: Step,
        rows: Int[Tensor, " K"],
        processors: Sequence[Processor],
        record: Record | None,
    ) -> Prediction:
        """Step at most `rows_per_call` sequences, in a batch padded to exactly that size."""
        num = len(rows)
        padded = torch.cat([rows, rows[:1].expand(self.rows_per_call - num)])
        part = canvas.rows(padded)
        places = list(zip(padded.tolist(), part.step_index.tolist(), strict=True))
        planned = [plans[row].steps[i] for row, i in places]
        phases = [plans[row].phases[i] for row, i in places]
        t = part.time.new_tensor([p.t for p in planned])
        s = part.time.new_tensor([p.s for p in planned])
        prediction = Prediction(self.network, t, part.tokens, self.schedule.vocab.size, processors)
        output = step(self.schedule, s, t, part, prediction)
        if output.best is not None and any(len(phase) == 1 for phase in phases):
            raise ConfigError(
                "a corrector that returns its best state needs at least 2 consecutive calls, got "
                "1: each call scores the change made by the call before. Use "
                "corrector_plan(corrector, calls) with calls >= 2."
            )
        end = part.step_index.new_tensor([phase.stop for phase in phases])
        following = part.step_index + 1
        if output.finished is not None:
            following = torch.where(output.finished, end, following)
        canvas.calls[rows] += prediction.was_read[:num]
        if record is not None and record.frames is not None:
            observation = prediction.observe()
            for k, (row, i) in enumerate(places[:num]):
                values = (value[k] for value in observation)
                frame = Frame(i, planned[k].name, planned[k].t, part.tokens[k], *values)
                record.frames[row].append(frame)
        log = record.edits if record is not None else None
        canvas.accept(rows, output.first(num), s[:num], log)
        canvas.restore_best(rows[(following == end)[:num]], log)
        canvas.step_index[rows] = following[:num]
        return prediction

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


def _active(canvas: Canvas, plans: Sequence[Plan]) -> list[tuple[Step, Int[Tensor, " K"]]]:
    """Group the sequences that are not done by the function of their next step.

    A sequence without free positions has no step to make.
    """
    groups: dict[Step, list[int]] = defaultdict(list)
    progress = zip(plans, canvas.step_index.tolist(), canvas.free.any(-1).tolist(), strict=True)
    for row, (plan, i, can_change) in enumerate(progress):
        if can_change and i < len(plan):
            groups[plan.steps[i].step].append(row)
    device = canvas.tokens.device
    return [(step, torch.tensor(rows, device=device)) for step, rows in groups.items()]
