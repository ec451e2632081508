"""Which move comes when: a plan is a list of steps, each from a time t to a time s <= t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.ancestral import ancestral

if TYPE_CHECKING:
    from jaxtyping import Float

Step = Callable[[MixingSchedule, Tensor, Tensor, Canvas, Prediction], StepOutput]
"""(schedule, s, t, canvas, prediction at t) -> what to change. A corrector has s = t.

Options are keyword arguments: `functools.partial(gibbs, distance=4)`.
"""


class PlannedStep(NamedTuple):
    """One call of a step, from time t to time s <= t."""

    step: Step
    t: float
    s: float

    @property
    def name(self) -> str:
        """The step's name, for logs."""
        function = self.step.func if isinstance(self.step, partial) else self.step
        return getattr(function, "__name__", type(function).__name__)


@final
@dataclass(frozen=True)
class Plan:
    """Moves in the order in which they are made. Add plans to have one after the other.

    Consecutive moves with the same step are a phase. A corrector that has converged ends its phase.
    """

    steps: tuple[PlannedStep, ...]

    def __post_init__(self) -> None:
        """Refuse times outside [0, 1] and moves that go back."""
        for number, (_, t, s) in enumerate(self.steps):
            if not 0 <= s <= t <= 1:
                raise ConfigError(
                    f"move {number} of a plan must go from t to s with 0 <= s <= t <= 1, got "
                    f"t = {t} and s = {s}. Make the mesh with gidd.diffusion.times.even_mesh."
                )

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps)

    def __len__(self) -> int:
        return len(self.steps)


def sampling_plan(
    mesh: Float[Tensor, " T+1"], step: Step = ancestral, correctors: Sequence[Step] = ()
) -> Plan:
    """From the first time of `mesh` to its last; `correctors` are called once after every step."""
    times: list[float] = mesh.tolist()
    steps: list[PlannedStep] = []
    for t, s in zip(times[:-1], times[1:], strict=True):
        steps.append(PlannedStep(step, t, s))
        steps.extend(PlannedStep(corrector, s, s) for corrector in correctors)
    return Plan(tuple(steps))


def corrector_plan(corrector: Step, calls: int, t: float = 0.0) -> Plan:
    """At most `calls` calls of a corrector at time `t`."""
    if calls < 0:
        raise ConfigError(
            f"the number of a corrector's calls must be at least 0, got {calls}. "
            "Each is one network call; 0 leaves the corrector out."
        )
    return Plan((PlannedStep(corrector, t, t),) * calls)
