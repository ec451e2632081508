"""Text-like sources with exact likelihoods and posteriors, for verifying models and estimators.

Reading order: `base` (the interface), `markov`, `sentences`, `enumeration` (exact bounds).
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.sources.base import (
        EntropyRate as EntropyRate,
        Source as Source,
        stationary_distribution as stationary_distribution,
    )
    from gidd.sources.enumeration import (
        SmallWorld as SmallWorld,
        block_worlds as block_worlds,
        exact_nodes as exact_nodes,
        total_variation as total_variation,
        unigram_nelbo as unigram_nelbo,
    )
    from gidd.sources.markov import (
        HiddenMarkovSource as HiddenMarkovSource,
        MarkovSource as MarkovSource,
    )
    from gidd.sources.sentences import sentence_source as sentence_source

__getattr__, __dir__ = lazy_exports(__name__)
