"""Defaults and limits of sampler options that the command line shows; imports no torch."""

THRESHOLD_FILL = 0.7
"""`threshold` fills a mask if its most likely token has at least this probability."""

THRESHOLD_REPLACE = 0.9
"""`threshold` replaces a visible token by one with at least this probability."""

MAX_TEMPERATURE = 1e38
"""A larger one overflows float32."""
