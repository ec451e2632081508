"""Training, on one process or many.

Reading order: `config` (with `optim`), `build` (from a configuration to a model), a step in three
functions (`corruption`, `objective` and `metrics`), `parallel`, `state`, `loop`, `checkpoints/`,
`recorded` (what may change on resume), `world` (processes), `watchdog` (hangs and signals),
`reporting/`. `gidd.runs` puts them together.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.training.build import (
        build_state as build_state,
        build_step as build_step,
    )
    from gidd.training.config import (
        DDP as DDP,
        FSDP as FSDP,
        DataConfig as DataConfig,
        Diffusion as Diffusion,
        Parallel as Parallel,
        RunConfig as RunConfig,
        TrainConfig as TrainConfig,
    )
    from gidd.training.corruption import Corruption as Corruption, NoisyBatch as NoisyBatch
    from gidd.training.loop import OnTrainStep as OnTrainStep, training_loop as training_loop
    from gidd.training.metrics import StepMetrics as StepMetrics
    from gidd.training.objective import (
        LossFunction as LossFunction,
        NoisyLoss as NoisyLoss,
        TrainedModel as TrainedModel,
        predict as predict,
    )
    from gidd.training.objectives import nelbo_objective as nelbo_objective
    from gidd.training.optim import OptimConfig as OptimConfig
    from gidd.training.state import EMA as EMA, TrainState as TrainState, TrainStep as TrainStep
    from gidd.training.world import World as World, open_world as open_world

__getattr__, __dir__ = lazy_exports(__name__)
