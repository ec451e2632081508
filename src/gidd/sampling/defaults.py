"""Limits of sampler options that the command line checks; imports no torch."""

MAX_TEMPERATURE = 1e38
"""A larger one overflows float32."""
