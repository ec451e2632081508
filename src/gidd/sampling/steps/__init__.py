"""Sampler steps, one file each. A step listed here is covered by every test of its kind.

A step is a plain function (schedule, s, t, canvas, prediction) -> `StepOutput`, from time t to s.
"""

from gidd.sampling.steps.ancestral import ancestral
from gidd.sampling.steps.ancestral_reference import ancestral_reference
from gidd.sampling.steps.confidence import confidence, greedy
from gidd.sampling.steps.gibbs import gibbs
from gidd.sampling.steps.threshold import threshold

STEPS = (ancestral, ancestral_reference, confidence, greedy, threshold)
"""All steps that lead from t to s."""

SAMPLING_STEPS = tuple(step for step in STEPS if step is not greedy)
"""Their law tends to the data's as steps grow, if the denoiser is exact (threshold: and fill = 1).

`greedy` draws nothing: whatever the steps, it has one text to give.
"""

MASK_FILLING_STEPS = (confidence, greedy, threshold)
"""They never draw a token anew, so what is said of their law is said for masking noise."""

__all__ = [
    "MASK_FILLING_STEPS",
    "SAMPLING_STEPS",
    "STEPS",
    "ancestral",
    "ancestral_reference",
    "confidence",
    "gibbs",
    "greedy",
    "threshold",
]
