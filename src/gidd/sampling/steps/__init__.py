"""Sampler steps, one file each. A step listed here is covered by every test of its kind.

A step is a function (schedule, s, t, canvas, prediction) -> `StepOutput`, from time t to s.
"""

from gidd.sampling.steps.ancestral import ancestral as ancestral
from gidd.sampling.steps.ancestral_reference import ancestral_reference as ancestral_reference
from gidd.sampling.steps.confidence import confidence as confidence, greedy as greedy
from gidd.sampling.steps.gibbs import gibbs as gibbs
from gidd.sampling.steps.threshold import threshold as threshold

STEPS = (ancestral, ancestral_reference, confidence, greedy, threshold)
"""All steps from t to s < t."""

SAMPLING_STEPS = tuple(step for step in STEPS if step is not greedy)
"""Steps that converge to the data distribution with the number of steps, for an exact denoiser.

`threshold` does so with fill = 1. `greedy` is deterministic: it always returns the same sequence.
"""

MASK_FILLING_STEPS = (confidence, greedy, threshold)
"""Steps that never redraw a token; statements on their distribution are for masking noise."""
