"""Correctors, one file each: they change tokens and leave the time as it is.

A corrector is a step with s = t. One listed here is covered by every test of its kind.
"""

from gidd.sampling.correctors.gibbs_sweep import gibbs_sweep
from gidd.sampling.correctors.self_correction import Score, gain, likelihood, self_correction
from gidd.sampling.steps.gibbs import gibbs

INVARIANT_CORRECTORS = (gibbs, gibbs_sweep)
"""They leave the law of Z_t unchanged, if the denoiser is exact and the distance large enough."""

CORRECTORS = (*INVARIANT_CORRECTORS, self_correction)
"""All correctors."""

__all__ = [
    "CORRECTORS",
    "INVARIANT_CORRECTORS",
    "Score",
    "gain",
    "gibbs",
    "gibbs_sweep",
    "likelihood",
    "self_correction",
]
