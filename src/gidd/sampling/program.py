"""The plans of a batch as tables, so that many sequences can be moved at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch
from torch import Tensor

from gidd.sampling.canvas import Canvas
from gidd.sampling.plan import Plan, PlannedStep, Step

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_DONE = -1


@final
@dataclass(frozen=True)
class Program:
    """P different plans, filled up to the longest (T moves), and who follows which."""

    steps: list[Step]
    plans: list[Plan]
    plan_of: Int[Tensor, " B"]

    kind: Int[Tensor, "P T+1"]
    """Which of `steps` a move calls; -1 after the last."""

    t: Float[Tensor, "P T+1"]
    s: Float[Tensor, "P T+1"]

    phase_end: Int[Tensor, "P T+1"]
    """The first move after this one that calls another step."""

    @classmethod
    def of(cls, plans: Sequence[Plan], canvas: Canvas) -> Self:
        """Tables for one plan for each sequence of the canvas; equal objects share a row."""
        unique = list({id(plan): plan for plan in plans}.values())
        number = {id(plan): i for i, plan in enumerate(unique)}
        steps = list(dict.fromkeys(planned.step for plan in unique for planned in plan.steps))
        step_number = {step: i for i, step in enumerate(steps)}
        longest = max((len(plan) for plan in unique), default=0) + 1
        kind = torch.full((len(unique), longest), _DONE)
        t = torch.zeros(len(unique), longest, dtype=canvas.time.dtype)
        s = torch.zeros_like(t)
        phase_end = torch.zeros_like(kind)
        for i, plan in enumerate(unique):
            end = len(plan)
            for j in reversed(range(len(plan))):
                planned = plan.steps[j]
                if j + 1 < len(plan) and plan.steps[j + 1].step != planned.step:
                    end = j + 1
                kind[i, j], t[i, j], s[i, j] = step_number[planned.step], planned.t, planned.s
                phase_end[i, j] = end
        plan_of = torch.tensor([number[id(plan)] for plan in plans], dtype=torch.int64)
        tables = (table.to(canvas.tokens.device) for table in (plan_of, kind, t, s, phase_end))
        return cls(steps, unique, *tables)

    @property
    def num_steps(self) -> Int[Tensor, " B"]:
        """The length of every sequence's plan."""
        return (self.kind != _DONE).sum(-1)[self.plan_of]

    def planned_step(self, row: int, number: int) -> PlannedStep:
        """A sequence's move."""
        return self.plans[int(self.plan_of[row])].steps[number]

    def active(self, canvas: Canvas) -> list[tuple[Step, Int[Tensor, " K"]]]:
        """The sequences that are not done, by the step that they call next.

        A sequence that is protected everywhere is done before it begins.
        """
        kind = self.kind[self.plan_of, canvas.step_index]
        kind = torch.where(canvas.free.any(-1), kind, _DONE)
        present: list[int] = kind.unique().tolist()
        return [(self.steps[k], (kind == k).nonzero().squeeze(-1)) for k in present if k != _DONE]

    def times(self, part: Canvas, rows: Int[Tensor, " K"]) -> tuple[Tensor, Tensor]:
        """t and s of the next move of the sequences `rows`, whose canvas is `part`."""
        plan = self.plan_of[rows]
        return self.t[plan, part.step_index], self.s[plan, part.step_index]

    def alone(self, part: Canvas, rows: Int[Tensor, " K"]) -> Bool[Tensor, " K"]:
        """Sequences whose present phase is one move."""
        plan, index = self.plan_of[rows], part.step_index
        begins = (index == 0) | (self.phase_end[plan, (index - 1).clamp_min(0)] == index)
        return begins & (self.phase_end[plan, index] == index + 1)

    def after(
        self, part: Canvas, rows: Int[Tensor, " K"], finished: Bool[Tensor, " K"] | None
    ) -> tuple[Int[Tensor, " K"], Bool[Tensor, " K"]]:
        """The number of the next move, past the phase if it is finished, and who leaves a phase."""
        end = self.phase_end[self.plan_of[rows], part.step_index]
        following = part.step_index + 1
        if finished is not None:
            following = torch.where(finished, end, following)
        return following, following == end
