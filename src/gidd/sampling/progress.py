"""The progress of a request in a session, and the events of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from torch import Tensor

from gidd.errors import LimitReached
from gidd.sampling.correctors.posterior import PosteriorCorrection
from gidd.sampling.limits import Budget
from gidd.sampling.plan import Plan, PlannedStep, no_op
from gidd.sampling.request import Edit, Frame, Limits, Request, Sample


class Shape(NamedTuple):
    """Requests of equal shape share forward passes."""

    rows: int
    """Sequences in a forward pass."""
    length: int
    """Tokens of each, padding included."""
    is_full: bool = True
    """Whether there is no padding; on a CPU, padding is no difference."""
    is_guided: bool = False
    """Whether a forward pass has a second row for each sequence, without the condition."""
    is_constrained: bool = False
    """Whether automata must accept the tokens of some positions."""
    settings: Any = None
    """Settings of torch of the thread that made the request."""
    capacity: int | None = None
    """Tokens of finished blocks before a sequence that is read in blocks, padded."""
    block_length: int | None = None
    """Length of the blocks of a sequence that is read in blocks."""


@dataclass(frozen=True)
class Event:
    """One step of one request, or its end."""

    request: Request
    index: int = 0
    """Index of the request among those that were given together."""
    tokens: tuple[int, ...] = ()
    """The sequence as it is now; empty before its first step."""
    best: tuple[int, ...] = ()
    """The result, were this the last step of its phase: for a corrector that scores states, such as
    Algorithm 1, it differs from `tokens`."""
    time: float = 0.0
    """Noise level: 1 before the first step of sampling, 0 after the last."""
    edits: tuple[Edit, ...] = ()
    """Tokens that this step replaced, in order; a corrector may revert some of them at once."""
    steps_done: int = 0
    """Steps of the plan so far, skipped ones included."""
    num_steps: int = 0
    """Steps of the plan; of a sequence that is sampled in blocks, of all its blocks."""
    forward_passes: int = 0
    """Forward passes so far."""
    frame: Frame | None = None
    """State and prediction before the step, if frames are recorded."""
    sample: Sample | None = None
    """The result, if this was the last step."""
    error: BaseException | None = None
    """Why the request failed, if it did."""


OnStep = Callable[[Sequence[Event]], None]
"""Called after each step in the session's thread, with an event for each of the caller's requests
that made it. What it raises ends the call."""


class Progress:
    """A request in a session: what is done, what is left, and its result."""

    def __init__(
        self,
        request: Request,
        limits: Limits,
        shape: Shape,
        cost: int,
        order: int,
        index: int,
        call: Any,
        *,
        priority: int = 0,
        record_frames: bool = False,
        record_edits: bool = True,
        is_watched: bool = False,
    ) -> None:
        self.request, self.limits, self.shape, self.cost = request, limits, shape, cost
        self.order, self.index = order, index
        """Index among all requests of the session, oldest first; and among those of its call."""
        self.call, self.budget = call, cast(Budget, call.budget)
        """The call of the session that awaits it."""
        self.priority, self.record_frames = priority, record_frames
        self.record_edits = record_edits and self.budget.record_edits
        self.is_watched = is_watched
        """Whether its caller wants events."""
        self.deadline = math.inf
        """Time at which its limits apply, or its call must be finished."""
        self._call_deadline = math.inf
        self.plan = request.plan
        """Steps to take; a limit may replace the remaining steps."""
        self.steps_done = self.forward_passes = 0
        self.tokens: tuple[int, ...] = ()
        self.best: tuple[int, ...] = ()
        self.edits: tuple[Edit, ...] = ()
        self.frame: Frame | None = None
        """Tokens, edits and frame of the last step, for its event."""
        self.is_stepping = False
        """Whether it is in a step that has not ended."""
        self.sample: Sample | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self._is_expired = False
        self._values: tuple[Tensor, ...] = ()
        self._edits: list[Edit] = []
        self._frames: list[Frame] = []

    @property
    def result(self) -> Sample | None:
        """The sample."""
        return self.sample

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
    def work_left(self) -> int:
        """Tokens of the forward passes that are left."""
        return (self.num_steps - self.steps_done) * self.shape.length

    @property
    def next_step(self) -> PlannedStep:
        """The step to take next."""
        return self.plan.steps[self.steps_done]

    @property
    def is_at_phase_end(self) -> bool:
        """Whether the next step is the last of its phase."""
        return self.steps_done + 1 == self.plan.phase_ends[self.steps_done]

    def is_clean_after(self, has_converged: bool) -> bool:
        """Whether the plan has reached time 0 after the next step, which has converged or not."""
        last = self.plan.phase_ends[self.steps_done] if has_converged else self.steps_done + 1
        return any(step.s == 0 for step in self.plan.steps[:last])

    @property
    def event(self) -> Event:
        """The event of the last step."""
        steps = self.plan.steps
        time = steps[self.steps_done - 1].s if self.steps_done else steps[0].t if steps else 0.0
        return Event(
            self.request,
            self.index,
            self.tokens,
            self.best or self.tokens,
            time,
            self.edits,
            self.steps_done,
            self.num_steps,
            self.forward_passes,
            self.frame,
            self.sample,
            self.error,
        )

    def advance(
        self,
        edits: list[Edit],
        frame: Frame | None,
        values: tuple[Tensor, ...],
        *,
        was_read: bool,
        ends_phase: bool,
    ) -> None:
        """Record the result of a step, and go on to the next one or to the next phase."""
        self.is_stepping = False
        self.forward_passes += was_read
        self.edits, self.frame = tuple(edits), frame
        self._edits += edits
        if frame is not None:
            self._frames.append(frame)
        self._values = values or self._values
        ends_phase = ends_phase or self.is_at_phase_end
        self.steps_done = (
            self.plan.phase_ends[self.steps_done] if ends_phase else self.steps_done + 1
        )

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""
        self.error = as_failure(error)
        self.edits, self.frame = (), None

    def finish(self, tokens: tuple[int, ...]) -> None:
        """Make the `Sample`."""
        self.tokens = tokens
        self.sample = Sample(
            tokens=tokens,
            text=self.request.truncate_at_stop(tokens),
            protected=self.request.are_protected,
            forward_passes=self.forward_passes,
            edits=tuple(self._edits),
            frames=tuple(self._frames),
            values=self._values,
            is_complete=not self._is_expired,
        )

    def reaches_limit(self) -> bool:
        """Whether its limit of forward passes allows no other step, or only the last one."""
        steps_left = self.num_steps - self.steps_done
        if self.limits.forward_passes is None or self._is_expired or steps_left <= 0:
            return False
        left = self.limits.forward_passes - self.forward_passes
        return left < 1 if self.limits.on_limit == "abort" else left < 2 and steps_left > 1

    def set_deadlines(self, now: float) -> None:
        """Set the times at which its limits apply, and at which its call must be finished."""
        self._call_deadline = now + self.budget.seconds_left
        seconds = math.inf if self.limits.seconds is None else self.limits.seconds
        self.deadline = min(now + seconds, self._call_deadline)

    def end_in_time(self, now: float) -> None:
        """End the request: its limit of seconds applies, or its call is late."""
        if self._call_deadline <= now:
            self.fail(self.budget.late_error)
        else:
            self.end_by_limit()
            self.deadline = self._call_deadline

    def end_by_limit(self) -> None:
        """Fail, or replace the rest of the plan by one step, as `Limits.on_limit` asks.

        While sampling, the step takes the most likely token at each position, given the sequence as
        noise of its time. In the phase of a corrector, its best state is the result.
        """
        if self.limits.on_limit == "abort":
            self.fail(self._limit_reached())
            return
        if self._is_expired or self.steps_done >= self.num_steps:
            return
        self._is_expired = True
        done, (_, t, _s) = self.plan.steps[: self.steps_done], self.next_step
        s = min(self.plan.steps[-1].s, t)
        last = PlannedStep(PosteriorCorrection() if s < t else no_op, t, s)
        self.plan = Plan((*done, last))

    def _limit_reached(self) -> LimitReached:
        limits = (self.limits.forward_passes, "forward_passes"), (self.limits.seconds, "seconds")
        allowed = " and ".join(f"{value} {name}" for value, name in limits if value is not None)
        return LimitReached(
            f"a request must be finished within its limits, {allowed}, got {self.forward_passes} "
            f"forward passes and {self.steps_done} of {self.num_steps} steps. Use a plan with "
            'fewer steps, raise the limits, or set on_limit="finish".'
        )


def as_failure(error: BaseException) -> BaseException:
    """Return an error that a coroutine can raise without ending more than itself."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"a step called sys.exit({error.code}).")
    if isinstance(error, StopIteration | GeneratorExit):
        return RuntimeError(f"a step raised {error!r}.")
    return error
