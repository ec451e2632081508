"""Compute-efficient frontiers and power laws over training runs.

Reading order: `flops`, `training_runs`, `power_law`, `scaling`.
"""
