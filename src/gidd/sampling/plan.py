"""Plans: which step function is called when, each from a time t to a time s <= t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, final

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import even_mesh
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.steps.ancestral import ancestral

if TYPE_CHECKING:
    from jaxtyping import Float

Step = Callable[[MixingSchedule, Tensor, Tensor, Canvas, Prediction], StepOutput]
"""(schedule, s, t, canvas, prediction at t) -> new tokens. A corrector has s = t.

Options are keyword arguments: `functools.partial(gibbs, distance=4)`.
"""


class PlannedStep(NamedTuple):
    """One call of a step function, from time t to time s <= t."""

    step: Step
    t: float
    s: float

    @property
    def name(self) -> str:
        """Name of the step function, for logs."""
        function = self.step.func if isinstance(self.step, partial) else self.step
        return getattr(function, "__name__", type(function).__name__)


@final
@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are called; `plan_a + plan_b` concatenates two plans.

    Consecutive steps with the same function form a phase. A corrector that converges skips the rest
    of its phase.
    """

    steps: tuple[PlannedStep, ...]

    def __post_init__(self) -> None:
        for i, (_, t, s) in enumerate(self.steps):
            if not 0 <= s <= t <= 1:
                raise ConfigError(
                    f"step {i} of a plan must go from t to s with 0 <= s <= t <= 1, got t = {t} "
                    f"and s = {s}. gidd.diffusion.times.even_mesh makes a valid mesh."
                )

    @cached_property
    def phases(self) -> tuple[range, ...]:
        """For each step, the indices of the steps of its phase."""
        phases: list[range] = []
        for _, steps in groupby(self.steps, key=lambda planned: planned.step):
            phase = range(len(phases), len(phases) + len(list(steps)))
            phases.extend([phase] * len(phase))
        return tuple(phases)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps)

    def __len__(self) -> int:
        return len(self.steps)


def sampling_plan(
    mesh: Float[Tensor, " T+1"], step: Step = ancestral, correctors: Sequence[Step] = ()
) -> Plan:
    """Step from the first time of `mesh` to its last; each step is followed by `correctors`."""
    times: list[float] = mesh.tolist()
    steps: list[PlannedStep] = []
    for t, s in zip(times[:-1], times[1:], strict=True):
        steps.append(PlannedStep(step, t, s))
        steps.extend(PlannedStep(corrector, s, s) for corrector in correctors)
    return Plan(tuple(steps))


def posterior_sampling_plan(t: float, num_steps: int, step: Step = ancestral) -> Plan:
    """Step from the noise level t of a given text to 0: samples of what the text may have been.

    A text with wrong tokens is a sample of Z_t for the t that `matched_time` returns. The reverse
    chain from there samples all its tokens jointly, given the text; `posterior_correction` instead
    takes the most likely token at each position. The steps are shorter towards 0: the noise of the
    paper's schedule decreases like sqrt(t).
    """
    mesh = t * even_mesh(num_steps).square()
    return sampling_plan(mesh, step)


def corrector_plan(corrector: Step, calls: int, t: float = 0.0) -> Plan:
    """Call a corrector at time `t`, at most `calls` times."""
    if calls < 0:
        raise ConfigError(
            f"calls of a corrector must be at least 0, got {calls}. "
            "Each call is one forward pass; 0 disables the corrector."
        )
    return Plan((PlannedStep(corrector, t, t),) * calls)
