"""Sampler steps, one file each. A step listed here is covered by every test of its kind.

A step is a plain function (schedule, s, t, canvas, prediction) -> `Change`, from time t to s.
"""

from gidd.sampling.steps.ancestral import ancestral
from gidd.sampling.steps.ancestral_reference import ancestral_reference
from gidd.sampling.steps.confidence import confidence, greedy
from gidd.sampling.steps.gibbs import gibbs
from gidd.sampling.steps.threshold import threshold

SAMPLING_STEPS = (ancestral, ancestral_reference, confidence)
"""Their law tends to the data's as steps grow, if the denoiser is exact."""

SEARCHING_STEPS = (greedy, threshold)
"""They look for a likely text; their law is not the data's."""

STEPS = (*SAMPLING_STEPS, *SEARCHING_STEPS)
"""All steps that lead from t to s."""

__all__ = [
    "SAMPLING_STEPS",
    "SEARCHING_STEPS",
    "STEPS",
    "ancestral",
    "ancestral_reference",
    "confidence",
    "gibbs",
    "greedy",
    "threshold",
]
