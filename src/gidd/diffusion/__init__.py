"""The mathematics of generalized interpolating discrete diffusion. It needs only torch.

Reading order: `schedule` (the interface), `schedules/`, `process` (marginals, noising, reverse
step), `elbo` (the loss), `weighting`, `times`, `randomness`, `categorical`; then `loss/` (without
[B, L, V] tensors, for training), `likelihood/`, `error_rate`; docs/paper-to-code.md maps equations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.diffusion.categorical import draw as draw
    from gidd.diffusion.elbo import (
        ElboTerms as ElboTerms,
        elbo_terms as elbo_terms,
        prior_kl as prior_kl,
        reconstruction as reconstruction,
    )
    from gidd.diffusion.loss import (
        DiffusionLoss as DiffusionLoss,
        diffusion_loss as diffusion_loss,
        fused_loss as fused_loss,
    )
    from gidd.diffusion.process import (
        marginal as marginal,
        noise as noise,
        posterior as posterior,
        sample_prior as sample_prior,
        transition as transition,
    )
    from gidd.diffusion.randomness import Stream as Stream, random_integers as random_integers
    from gidd.diffusion.schedule import MixingSchedule as MixingSchedule
    from gidd.diffusion.schedules import (
        Cosine as Cosine,
        FunctionalSchedule as FunctionalSchedule,
        FunctionAmount as FunctionAmount,
        FunctionCurve as FunctionCurve,
        HybridSchedule as HybridSchedule,
        Linear as Linear,
        LinearAmount as LinearAmount,
        MaskedSchedule as MaskedSchedule,
        MixtureComponent as MixtureComponent,
        MixtureSchedule as MixtureSchedule,
        PeakedAmount as PeakedAmount,
        Polynomial as Polynomial,
        UniformSchedule as UniformSchedule,
        mask_noise as mask_noise,
        uniform_noise as uniform_noise,
    )
    from gidd.diffusion.times import (
        even_times as even_times,
        sine_midpoints as sine_midpoints,
        sine_times as sine_times,
        stratified_times as stratified_times,
    )
    from gidd.diffusion.weighting import (
        ClampWeighting as ClampWeighting,
        DynamicWeighting as DynamicWeighting,
        ElboWeighting as ElboWeighting,
        TightWeighting as TightWeighting,
        Weighting as Weighting,
    )

__getattr__, __dir__ = lazy_exports(__name__)
