"""Correctors, one file each: they change tokens at a fixed time.

A corrector is a step with s = t. One listed here is covered by every test of its kind.
"""

from gidd.sampling.correctors.gibbs_sweep import gibbs_sweep as gibbs_sweep
from gidd.sampling.correctors.self_correction import (
    Score as Score,
    gain as gain,
    likelihood as likelihood,
    self_correction as self_correction,
)
from gidd.sampling.steps.gibbs import gibbs as gibbs

INVARIANT_CORRECTORS = (gibbs, gibbs_sweep)
"""They leave the distribution of Z_t invariant, for an exact denoiser and a large distance."""

CORRECTORS = (*INVARIANT_CORRECTORS, self_correction)
"""All correctors."""
