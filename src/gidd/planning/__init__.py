"""Estimate what a run needs on other hardware."""
