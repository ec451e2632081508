"""A request in a session: its progress, its result, and what each step changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from gidd.errors import LimitReached
from gidd.sampling.correctors.posterior import PosteriorCorrection
from gidd.sampling.plan import Plan, PlannedStep, no_op
from gidd.sampling.request import Edit, Frame, Limits, Request, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Event(NamedTuple):
    """One step of one request, or its end."""

    ticket: Ticket
    edits: tuple[Edit, ...] = ()
    """Tokens that this step replaced, in order; a corrector may revert some of them at once."""
    steps_done: int = 0
    """Steps of the plan so far, skipped ones included."""
    forward_passes: int = 0
    """Forward passes so far."""
    frame: Frame | None = None
    """State and prediction before the step, if frames are recorded."""
    sample: Sample | None = None
    """The result, if this was the last step."""
    error: Exception | None = None
    """Why the request failed, if it did."""
    num_steps: int = 0
    """Steps of the plan; of a sequence that is sampled in blocks, of all its blocks."""


OnStep = Callable[[Sequence[Event]], None]
"""Called after each step of a session, with an event for each request that made a step."""


class Ticket:
    """A request that was submitted to a session. Only the session changes it."""

    def __init__(
        self,
        number: int,
        request: Request,
        limits: Limits,
        cost: int = 0,
        priority: int = 0,
        record_frames: bool = False,
        record_edits: bool = True,
        on_step: OnStep | None = None,
    ) -> None:
        self.number = number
        """Index among the requests of the session, in the order in which they were submitted."""
        self.request, self.limits, self.cost, self.priority = request, limits, cost, priority
        self.record_frames, self.record_edits, self.on_step = record_frames, record_edits, on_step
        self.plan = request.plan
        """Steps to take; a limit may replace the remaining steps."""
        self.steps_done = 0
        """Steps of the plan so far, skipped ones included."""
        self.forward_passes = 0
        self.is_stepping = False
        """Whether it is in a step that has not ended."""
        self.sample: Sample | None = None
        self.error: Exception | None = None
        self.is_cancelled = False
        self.deadline: float | None = None
        """Time of the session's clock after which its limits apply."""
        self.values: tuple[Tensor, ...] = ()
        """`State.values` of the last step that had any."""
        self._is_expired = False
        self.row: NDArray[np.int64] | None = None
        """Its row of the bucket's tokens, which the bucket keeps up to date."""
        self._edits: list[Edit] = []
        self._frames: list[Frame] = []

    @property
    def is_done(self) -> bool:
        """Whether it takes no further step: finished, failed or cancelled."""
        return self.is_cancelled or self.sample is not None or self.error is not None

    @property
    def computed(self) -> int:
        """The part of its cost that was computed: tokens of the forward passes that were made."""
        passes = max(self.forward_passes, len(self._frames)) + self.is_stepping  # a frame is one
        steps = len(self.request.plan)
        return self.cost * min(passes, steps) // max(1, steps)

    @property
    def num_steps(self) -> int:
        """Steps of its plan."""
        return len(self.plan)

    @property
    def time(self) -> float:
        """Noise level of the sequence: 1 before the first step of sampling, 0 after the last."""
        if self.steps_done:
            return self.plan.steps[self.steps_done - 1].s
        return self.plan.steps[0].t if self.plan.steps else 0.0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sequence as it is now; empty before its first step."""
        return () if self.row is None else tuple(self.row.tolist())

    @property
    def next_step(self) -> PlannedStep:
        """The step to take next."""
        return self.plan.steps[self.steps_done]

    @property
    def is_at_phase_end(self) -> bool:
        """Whether the next step is the last of its phase."""
        return self.steps_done + 1 == self.plan.phase_ends[self.steps_done]

    def detach(self) -> None:
        """Copy the sequence, because another request gets the row of the buffer."""
        if self.row is not None:
            self.row = self.row.copy()

    def add(self, edits: list[Edit], frame: Frame | None, was_read: bool) -> None:
        """Record the result of a step."""
        self._edits += edits
        self.forward_passes += was_read
        self.is_stepping = False
        if frame is not None:
            self._frames.append(frame)

    def advance(self, *, ends_phase: bool) -> None:
        """Advance to the next step, or to the next phase."""
        phase_end = self.plan.phase_ends[self.steps_done]
        self.steps_done = phase_end if ends_phase else self.steps_done + 1

    def fail(self, error: Exception | SystemExit) -> Event:
        """End with an error."""
        self.detach()
        if isinstance(error, SystemExit):  # which would end the thread of whoever raises it again
            error = RuntimeError(f"a step called sys.exit({error.code}).")
        self.error = error
        return self.event([])

    def discard_result(self) -> None:
        """Forget what a cancelled request has, so that nothing of it is seen."""
        self.detach()
        self.sample, self.error = None, None

    def finish(self) -> None:
        """Make the result."""
        self.detach()
        tokens = self.tokens
        self.sample = Sample(
            tokens=tokens,
            text=self.request.truncate_at_stop(tokens),
            protected=self.request.are_protected,
            forward_passes=self.forward_passes,
            edits=tuple(self._edits),
            frames=tuple(self._frames),
            values=self.values,
            is_complete=not self._is_expired,
        )

    def event(self, edits: list[Edit], frame: Frame | None = None) -> Event:
        """Return what happened, given the edits of the step."""
        numbers = self.steps_done, self.forward_passes
        result = self.sample, self.error, self.num_steps
        return Event(self, tuple(edits), *numbers, frame, *result)

    def reaches_limit(self) -> bool:
        """Whether its limit of forward passes allows no other step, or only the last one."""
        steps_left = self.num_steps - self.steps_done
        if self.limits.forward_passes is None or self._is_expired or steps_left <= 0:
            return False
        left = self.limits.forward_passes - self.forward_passes
        return left < 1 if self.limits.on_limit == "abort" else left < 2 and steps_left > 1

    def expire(self) -> None:
        """Replace the rest of the plan by one step, as `Limits.on_limit` = "finish" asks.

        While sampling, the step takes the most likely token at each position, given the sequence as
        noise of its time. In the phase of a corrector, its best state is the result.
        """
        if self._is_expired or self.steps_done >= self.num_steps:
            return
        self._is_expired = True
        done, (_, t, _s) = self.plan.steps[: self.steps_done], self.next_step
        s = min(self.plan.steps[-1].s, t)
        last = PlannedStep(PosteriorCorrection() if s < t else no_op, t, s)
        self.plan = Plan((*done, last))


def limit_reached(ticket: Ticket) -> LimitReached:
    """Return the error of a request that is aborted by its limits."""
    limits = (ticket.limits.forward_passes, "forward_passes"), (ticket.limits.seconds, "seconds")
    allowed = " and ".join(f"{value} {name}" for value, name in limits if value is not None)
    return LimitReached(
        f"a request must be finished within its limits, {allowed}, got {ticket.forward_passes} "
        f"forward passes and {ticket.steps_done} of {ticket.num_steps} steps. Use a plan with "
        'fewer steps, raise the limits, or set on_limit="finish".'
    )
