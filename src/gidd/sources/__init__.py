"""Text-like sources with exact likelihoods and posteriors, for verifying models and estimators.

Reading order: `base` (the interface), `markov`, `sentences`, `enumeration` (exact bounds).
"""

from gidd.sources.base import EntropyRate, Source, stationary_distribution
from gidd.sources.enumeration import SmallWorld, exact_nodes, total_variation, unigram_nelbo
from gidd.sources.markov import HiddenMarkovSource, MarkovSource
from gidd.sources.sentences import sentence_source

SOURCES: tuple[type[Source], ...] = (MarkovSource, HiddenMarkovSource)

__all__ = [
    "SOURCES",
    "EntropyRate",
    "HiddenMarkovSource",
    "MarkovSource",
    "SmallWorld",
    "Source",
    "exact_nodes",
    "sentence_source",
    "stationary_distribution",
    "total_variation",
    "unigram_nelbo",
]
