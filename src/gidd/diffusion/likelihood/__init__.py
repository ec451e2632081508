"""Likelihoods: `scoring` (what is scored, in batches) and `estimator` (the one estimator)."""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.diffusion.likelihood.estimator import (
        NUM_NODES as NUM_NODES,
        NUM_REPEATS as NUM_REPEATS,
        TOKENS_PER_BATCH as TOKENS_PER_BATCH,
        NelboEstimate as NelboEstimate,
        NelboEstimator as NelboEstimator,
        RankGroup as RankGroup,
        estimate_nelbo as estimate_nelbo,
    )
    from gidd.diffusion.likelihood.scoring import ScoredText as ScoredText

__getattr__, __dir__ = lazy_exports(__name__)
