"""A training run from its configuration to a model."""
