"""Objectives: what training minimises for a noisy batch. Tests cover all that `COMPONENTS` names.

An objective is a callable (denoiser, noisy) that returns what `nelbo_objective` returns, or a
scalar loss (`gidd.training.objective.LossFunction`): a function, or a frozen dataclass if it has
options.
Modules here import torch only inside functions: help lists objectives without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gidd.training.objectives.drafts import Drafts as Drafts

if TYPE_CHECKING:
    from gidd.models import Denoiser
    from gidd.training.corruption import NoisyBatch
    from gidd.training.objective import NoisyLoss

COMPONENTS: dict[str, str] = {"nelbo": "nelbo_objective", "drafts": "Drafts"}
"""Function or class of each objective by its name."""


def nelbo_objective(denoiser: Denoiser, noisy: NoisyBatch) -> NoisyLoss:
    """Return the NELBO of Eq. 14 at one time per sample, with the weights of `noisy.weighting`."""
    from gidd.diffusion.loss import loss_at
    from gidd.training.objective import NoisyLoss

    terms = loss_at(
        denoiser,
        noisy.schedule,
        noisy.weighting,
        noisy.t,
        noisy.batch.tokens,
        noisy.z,
        noisy.scale,
        compiled=noisy.compiled,
        given=noisy.fixed,
        valid=noisy.valid,
        segments=noisy.batch.segments,
        block_index=noisy.block_index,
    )
    return NoisyLoss(noisy.z, terms)
