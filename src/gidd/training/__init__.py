"""Training, on one process or many.

Reading order: `config` (with `optim` and `parallel`), `build` (from a configuration to a model),
`objective` (the loss), `state`, `loop`, `checkpoints/`, `resume` (what may change in between),
`world` (processes), `watchdog` (hangs and signals), `reporting/`. `gidd.runs` puts them together.
Names are imported on first use.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.training.build import build_objective as build_objective, build_state as build_state
    from gidd.training.config import (
        Autoregressive as Autoregressive,
        DataConfig as DataConfig,
        Diffusion as Diffusion,
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
    from gidd.training.parallel import DDP as DDP, FSDP as FSDP, Parallel as Parallel
    from gidd.training.state import EMA as EMA, TrainState as TrainState
    from gidd.training.world import World as World, open_world as open_world

__getattr__, __dir__ = lazy_exports(__name__)
