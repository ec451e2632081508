"""Sampler steps. Every test of steps covers the steps that `COMPONENTS` names.

A step is a `gidd.sampling.Step`. The names are known without importing torch.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sampling.steps.ancestral import Psi as Psi, ancestral as ancestral
    from gidd.sampling.steps.confidence import (
        Confidence as Confidence,
        Greedy as Greedy,
        Threshold as Threshold,
    )
    from gidd.sampling.steps.remasking import RemaskSuspects as RemaskSuspects, ReMDM as ReMDM
    from gidd.sampling.steps.renoise import Renoise as Renoise

COMPONENTS: dict[str, str] = {
    "ancestral": "ancestral",
    "confidence": "Confidence",
    "greedy": "Greedy",
    "threshold": "Threshold",
    "remdm": "ReMDM",
    "remask_suspects": "RemaskSuspects",
    "psi": "Psi",
    "renoise": "Renoise",
}
"""Function or class of each step from t to s < t by its name."""

_SEARCHES = ("greedy", "remask_suspects", "renoise")
SAMPLING_STEPS = tuple(name for name in COMPONENTS if name not in _SEARCHES)
"""Steps that converge to the data distribution with the number of steps, for an exact denoiser.

`threshold` does so with fill = 1. `greedy` is deterministic: it always returns the same sequence.
`remask_suspects` draws again what the data has rarely; `renoise` returns the most likely tokens.
"""

MASK_FILLING_STEPS = ("confidence", "greedy", "threshold")
"""Steps that never redraw a token; statements on their distribution are for masking noise."""

__getattr__, __dir__ = lazy_exports(__name__)
