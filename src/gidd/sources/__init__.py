"""Text-like sources whose likelihood and posteriors are known exactly."""

from gidd.sources.base import EntropyRate, Source
from gidd.sources.hidden_markov import HiddenMarkovSource
from gidd.sources.markov import MarkovSource

SOURCES: tuple[type[Source], ...] = (MarkovSource, HiddenMarkovSource)

__all__ = ["SOURCES", "EntropyRate", "HiddenMarkovSource", "MarkovSource", "Source"]
