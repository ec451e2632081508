"""Correctors, one file each: they change tokens at a fixed time.

A corrector is a step with s = t. Every test of correctors covers the functions that `PARTS` names.
The exports are imported on first use, so the names are known without importing torch.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.correctors.gibbs_sweep import gibbs_sweep as gibbs_sweep
    from gidd.sampling.correctors.posterior import posterior_correction as posterior_correction
    from gidd.sampling.correctors.self_correction import (
        Score as Score,
        gain as gain,
        likelihood as likelihood,
        self_correction as self_correction,
    )
    from gidd.sampling.steps.gibbs import gibbs as gibbs

PARTS: dict[str, str] = {
    "gibbs": "gibbs",
    "gibbs_sweep": "gibbs_sweep",
    "posterior": "posterior_correction",
    "self_correction": "self_correction",
}
"""Function of each corrector by its name."""

INVARIANT_CORRECTORS = ("gibbs", "gibbs_sweep")
"""They leave the distribution of Z_t invariant, for an exact denoiser and a large distance."""

__getattr__, __dir__ = lazy_exports(__name__)
