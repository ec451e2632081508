"""Readers of other projects' checkpoints, one module per layout."""
