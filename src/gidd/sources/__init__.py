"""Text-like sources with exact likelihoods and posteriors, for verifying models and estimators.

Reading order: `base` (the interface: sample, log_prob, posteriors, entropy rate), `markov`,
`hidden_markov`, `enumeration` (exact bounds and distributions of small sources).
"""

from gidd.sources.base import EntropyRate, Source, stationary_distribution
from gidd.sources.enumeration import SmallWorld, exact_nodes, total_variation, unigram_nelbo
from gidd.sources.hidden_markov import HiddenMarkovSource
from gidd.sources.markov import MarkovSource

SOURCES: tuple[type[Source], ...] = (MarkovSource, HiddenMarkovSource)

__all__ = [
    "SOURCES",
    "EntropyRate",
    "HiddenMarkovSource",
    "MarkovSource",
    "SmallWorld",
    "Source",
    "exact_nodes",
    "stationary_distribution",
    "total_variation",
    "unigram_nelbo",
]
