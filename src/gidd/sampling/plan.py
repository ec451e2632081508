"""Plans: which step function is called when, each from a time t to a time s <= t."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

from torch import Tensor

from gidd.common.config.registry import name_of
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.sampling.predict import Predict
from gidd.sampling.state import State
from gidd.sampling.steps.ancestral import ancestral

if TYPE_CHECKING:
    from jaxtyping import Float

Step = Callable[[MixingSchedule, Tensor, Tensor, State, Predict], State]
"""(schedule, s, t, state, predict) -> the state at time s, with new tokens. A corrector has s = t.

A step without options is a plain function. One with options is a frozen dataclass, such as
`Gibbs(distance=4)`, which checks them when it is made and equals another one with the same options:
such steps are called together. Two optional attributes are read before a request is admitted:

- `check(schedule, t)` raises `ConfigError` if the step cannot begin at time t with this schedule;
- `min_steps`, 1 by default, is the number of consecutive steps that a phase needs.
"""


class PlannedStep(NamedTuple):
    """One call of a step function, from time t to time s <= t."""

    step: Step
    t: float
    s: float

    @property
    def name(self) -> str:
        """Name of the step in logs: the function's, or the registered name of a class."""
        function = self.step.func if isinstance(self.step, partial) else self.step
        return getattr(function, "__name__", None) or _class_name(type(function))


@lru_cache(maxsize=256)  # asks the registry, and logs name every step of a plan
def _class_name(step: type) -> str:
    registered = name_of(step)
    return getattr(step, "log_name", registered[1] if registered else step.__name__)


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are called; `plan_a + plan_b` concatenates two plans.

    Consecutive steps with the same function form a phase. A corrector that converges skips the rest
    of its phase.
    """

    steps: tuple[PlannedStep, ...]

    def __post_init__(self) -> None:
        checked: object = self  # not a step
        for i, (step, t, s) in enumerate(self.steps):
            if not 0 <= s <= t <= 1:
                raise ConfigError(
                    f"step {i} of a plan must go from t to s with 0 <= s <= t <= 1, got t = {t} "
                    f"and s = {s}. gidd.diffusion.times.even_times makes valid times."
                )
            if step is not checked and not is_hashable_function(step):
                raise ConfigError(
                    f"step {i} of a plan must be a function or a frozen dataclass with __call__, "
                    f"got {shorten(step)}."
                )
            checked = step

    @cached_property
    def phases(self) -> tuple[range, ...]:
        """The steps of each phase."""
        phases: list[range] = []
        for _, group in groupby(self.steps, key=lambda planned: planned.step):
            start = phases[-1].stop if phases else 0
            phases.append(range(start, start + len(list(group))))
        return tuple(phases)

    @cached_property
    def phase_ends(self) -> tuple[int, ...]:
        """For each step, the index after the last step of its phase."""
        return tuple(phase.stop for phase in self.phases for _ in phase)

    def check(self, schedule: MixingSchedule) -> None:
        """Raise `ConfigError` if a step cannot be made with a schedule (see `Step`)."""
        for phase in self.phases:
            first = self.steps[phase.start]
            if (check := getattr(first.step, "check", None)) is not None:
                check(schedule, first.t)
            least: int = getattr(first.step, "min_steps", 1)
            if len(phase) < least:
                raise ConfigError(
                    f"{first.name} needs at least {least} consecutive steps, got {len(phase)}. "
                    f"Use corrector_plan(corrector, num_steps) with num_steps >= {least}."
                )

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps) if other.steps else self

    def __len__(self) -> int:
        return len(self.steps)


def is_hashable_function(value: object) -> bool:
    """Whether a value can be called, compared and used as a key, as steps and processors are."""
    return callable(value) and isinstance(cast(object, value), Hashable)


def sampling_plan(
    times: Float[Tensor, " T+1"], step: Step = ancestral, correctors: Sequence[Step] = ()
) -> Plan:
    """Step from the first of `times` to the last; each step is followed by `correctors`."""
    steps: list[PlannedStep] = []
    for t, s in pairwise(times.tolist()):
        steps.append(PlannedStep(step, t, s))
        for corrector in correctors:
            steps.append(PlannedStep(corrector, s, s))
    return Plan(tuple(steps))


def posterior_sampling_plan(t: float, num_steps: int, step: Step = ancestral) -> Plan:
    """Step from the noise level t of a given text to 0: samples of what the text may have been.

    A text with wrong tokens is a sample of Z_t, t = `time_at_error_rate`. The reverse chain from
    there samples all its tokens jointly, given the text. The steps are shorter towards 0: the noise
    of the paper's schedule decreases like sqrt(t).
    """
    return sampling_plan(t * even_times(num_steps).square(), step)


def corrector_plan(corrector: Step, num_steps: int, t: float = 0.0) -> Plan:
    """Call a corrector at time `t`, at most `num_steps` times."""
    if num_steps < 0:
        raise ConfigError(
            f"num_steps of a corrector must be at least 0, got {num_steps}. Each is one forward "
            "pass; 0 disables the corrector."
        )
    return Plan((PlannedStep(corrector, t, t),) * num_steps)


def no_op(schedule: MixingSchedule, s: Tensor, t: Tensor, state: State, predict: Predict) -> State:
    """Change nothing: for plans that need the prediction only, or end a phase."""
    return state
