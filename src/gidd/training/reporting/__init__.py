"""Metrics of a run: log file, terminal, trackers.

Reading order: `report` (what a run calls, and the terminal), `log` (metrics.jsonl; imports no
torch), `trackers` (TensorBoard, Weights & Biases, trackio), `speed` (tokens per second, MFU).
"""
