"""From documents to token shards.

Reading order: `work_plan` (order, split and tasks), `tasks` (documents to shards, one task),
`prepare` (a complete preparation), `executors` (tasks on a cluster).
"""

from gidd.data.preparation.executors import RayOptions, SlurmOptions, run_on_ray, submit_to_slurm
from gidd.data.preparation.prepare import Preparation, prepare, run_locally, start_preparation
from gidd.data.preparation.work_plan import TRAIN, VALIDATION, ValidationOrder

__all__ = [
    "TRAIN",
    "VALIDATION",
    "Preparation",
    "RayOptions",
    "SlurmOptions",
    "ValidationOrder",
    "prepare",
    "run_locally",
    "run_on_ray",
    "start_preparation",
    "submit_to_slurm",
]
