"""A training step of any denoiser and noise, without a run."""

from torch import Tensor

from gidd.data.batch import Batch
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.models import Denoiser
from gidd.training import Corruption, StepMetrics, TrainedModel, TrainStep, nelbo_objective
from gidd.training.loop import StepLoss, step_loss


def step_of(
    denoiser: Denoiser,
    schedule: MixingSchedule,
    weighting: Weighting,
    *,
    token_bytes: Tensor | None = None,
    objective=nelbo_objective,
    **settings: object,
) -> TrainStep:
    """Return what a step of this denoiser computes; `settings` are those of `Corruption`."""
    corrupt = Corruption(schedule=schedule, weighting=weighting, **settings)
    return TrainStep(TrainedModel(denoiser), corrupt, objective, StepMetrics(token_bytes))


def run_step(
    step: TrainStep, batch: Batch, number: int, num_samples: int, scale: float | Tensor = 1.0
) -> StepLoss:
    """Return the loss of a batch, and its sums."""
    return step_loss(step, step.model, batch, number, num_samples, scale)
