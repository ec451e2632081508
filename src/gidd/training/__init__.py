"""Training, on one process or many.

Reading order: `config` (with `optim`), `build` (from a configuration to a model), `objective` (the
loss), `parallel`, `state`, `loop`, `checkpoints/`, `recorded` (what may change on resume), `world`
(processes), `watchdog` (hangs and signals), `reporting/`. `gidd.runs` puts them together.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.training.build import build_objective as build_objective, build_state as build_state
    from gidd.training.config import (
        DDP as DDP,
        FSDP as FSDP,
        Autoregressive as Autoregressive,
        DataConfig as DataConfig,
        Diffusion as Diffusion,
        Parallel as Parallel,
        RunConfig as RunConfig,
        TrainConfig as TrainConfig,
    )
    from gidd.training.loop import training_loop as training_loop
    from gidd.training.objective import (
        AutoregressiveObjective as AutoregressiveObjective,
        DiffusionObjective as DiffusionObjective,
        Objective as Objective,
    )
    from gidd.training.optim import OptimConfig as OptimConfig
    from gidd.training.state import EMA as EMA, TrainState as TrainState
    from gidd.training.world import World as World, open_world as open_world

__getattr__, __dir__ = lazy_exports(__name__)
