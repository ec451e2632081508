"""Constants that configurations need without importing torch."""

TRAINING_EPS = 1e-4
"""Training times lie in [eps, 1 - eps] (App. E)."""
PAPER_CEILING = 1e4
"""Upper limit of the ELBO weights in the paper's training runs, for stability (App. E)."""
