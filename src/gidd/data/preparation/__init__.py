"""From documents to token shards.

Reading order: `tasks` (the plan, and documents to shards), `prepare` (a complete preparation),
`executors` (tasks on a cluster).
"""

from gidd.data.preparation.executors import (
    RayOptions as RayOptions,
    SlurmOptions as SlurmOptions,
    run_on_ray as run_on_ray,
    submit_to_slurm as submit_to_slurm,
)
from gidd.data.preparation.prepare import (
    Preparation as Preparation,
    prepare as prepare,
    run_locally as run_locally,
    start_preparation as start_preparation,
)
from gidd.data.preparation.tasks import (
    TRAIN as TRAIN,
    VALIDATION as VALIDATION,
    DataFormat as DataFormat,
    ValidationOrder as ValidationOrder,
)
