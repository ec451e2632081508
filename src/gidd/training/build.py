"""Build the training state of a configuration, on any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from gidd.models import AutoregressiveModel, Denoiser, DiT
from gidd.models.init import Initializer
from gidd.training.config import Diffusion, RunConfig
from gidd.training.objective import AutoregressiveObjective, DiffusionObjective, Objective
from gidd.training.state import EMA, TrainState
from gidd.training.world import World
from gidd.vocab import Vocab


def build_objective(run: RunConfig, vocab: Vocab, token_bytes: Tensor | None = None) -> Objective:
    """Build model and objective on the meta device: shapes without memory."""
    sizes = run.model.build(vocab.size, run.data.length)
    objective = run.objective
    with torch.device("meta"):
        if not isinstance(objective, Diffusion):
            return AutoregressiveObjective(AutoregressiveModel(sizes), token_bytes=token_bytes)
        denoiser = Denoiser(DiT(sizes), vocab)
    schedule = objective.noise.build(vocab)
    return DiffusionObjective(
        denoiser,
        schedule,
        objective.weights.build(schedule),
        seed=run.train.seed,
        eps=objective.eps,
        token_bytes=token_bytes,
        compiled=run.train.compile,
    )


def build_state(
    run: RunConfig, vocab: Vocab, world: World, token_bytes: Tensor | None = None
) -> TrainState:
    """Build the state at step 0. All ranks enter.

    A rank never holds more than its shard of the state and one full parameter.
    """
    objective = build_objective(run, vocab, token_bytes)
    if run.train.compile:
        for block in objective.network.blocks:
            block.compile(fullgraph=True)  # one short compilation that all blocks share
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    run.parallel.place(objective, objective.network, world, precision)
    objective.network.reset_parameters(Initializer(run.train.seed))
    decay = run.train.ema_decay
    return TrainState(
        objective=objective,
        module=run.parallel.connect(objective, world),
        optimizer=run.optim.build(objective.parameters()),
        ema=None if decay is None else EMA(objective.named_parameters(), decay),
    )
