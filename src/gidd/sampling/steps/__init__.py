"""Sampler steps, one file each. Every test of steps covers the functions that `PARTS` names.

A step is a function (schedule, s, t, canvas, prediction) -> `StepOutput`, from time t to s. The
exports are imported on first use, so the names are known without importing torch.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.steps.ancestral import ancestral as ancestral
    from gidd.sampling.steps.ancestral_reference import ancestral_reference as ancestral_reference
    from gidd.sampling.steps.confidence import confidence as confidence, greedy as greedy
    from gidd.sampling.steps.gibbs import gibbs as gibbs
    from gidd.sampling.steps.threshold import threshold as threshold

PARTS: dict[str, str] = {
    "ancestral": "ancestral",
    "ancestral_reference": "ancestral_reference",
    "confidence": "confidence",
    "greedy": "greedy",
    "threshold": "threshold",
}
"""Function of each step from t to s < t by its name."""

SAMPLING_STEPS = tuple(name for name in PARTS if name != "greedy")
"""Steps that converge to the data distribution with the number of steps, for an exact denoiser.

`threshold` does so with fill = 1. `greedy` is deterministic: it always returns the same sequence.
"""

MASK_FILLING_STEPS = ("confidence", "greedy", "threshold")
"""Steps that never redraw a token; statements on their distribution are for masking noise."""

__getattr__, __dir__ = lazy_exports(__name__)
