"""Correctors: steps that change tokens at a fixed time.

Tests of correctors cover the classes that `COMPONENTS` names, known without importing torch.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.correctors.gibbs import Gibbs as Gibbs, GibbsSweep as GibbsSweep
    from gidd.sampling.correctors.posterior import PosteriorCorrection as PosteriorCorrection
    from gidd.sampling.correctors.self_correction import (
        Score as Score,
        SelfCorrectionStep as SelfCorrectionStep,
        rank_by_probability as rank_by_probability,
        rank_by_ratio as rank_by_ratio,
    )

COMPONENTS: dict[str, str] = {
    "gibbs": "Gibbs",
    "gibbs_sweep": "GibbsSweep",
    "posterior": "PosteriorCorrection",
    "self_correction": "SelfCorrectionStep",
}
"""Class of each corrector by its name."""

INVARIANT_CORRECTORS = ("gibbs", "gibbs_sweep")
"""They leave the distribution of Z_t invariant, for an exact denoiser and a large distance."""

__getattr__, __dir__ = lazy_exports(__name__)
