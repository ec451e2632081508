"""Checkpoints of other projects."""
