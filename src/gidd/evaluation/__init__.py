"""How good a model is: one loop, for the trainer and for everyone else."""

from gidd.evaluation.likelihood import unigram_entropy, validate

__all__ = ["unigram_entropy", "validate"]
