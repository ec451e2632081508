"""Objectives: what training minimises for a noisy batch. Tests cover all that `COMPONENTS` names.

An objective is a callable (model, noisy) that returns `model.nelbo(noisy)` or a scalar loss
(`gidd.training.objective.LossFunction`): a function, or a frozen dataclass if it has options.
Modules here import torch only inside functions: help lists objectives without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gidd.training.objectives.drafts import Drafts as Drafts

if TYPE_CHECKING:
    from gidd.training.objective import DiffusionObjective, NoisyBatch, NoisyLoss

COMPONENTS: dict[str, str] = {"nelbo": "nelbo", "drafts": "Drafts"}
"""Function or class of each objective by its name."""


def nelbo(model: DiffusionObjective, noisy: NoisyBatch) -> NoisyLoss:
    """Minimise the NELBO of Eq. 14 with the weights of the run's weighting."""
    return model.nelbo(noisy)
