"""Metrics of a run: log, console, trackers."""
