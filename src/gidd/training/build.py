"""From a configuration to a state that can be trained or restored, on any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from gidd.models import AutoregressiveModel, Denoiser, DiT
from gidd.models.init import Initializer
from gidd.training.config import Diffusion, RunConfig
from gidd.training.objective import AutoregressiveObjective, DiffusionObjective, Objective
from gidd.training.parallel import compile_blocks
from gidd.training.state import EMA, TrainState
from gidd.training.world import World
from gidd.vocab import Vocab


def build_objective(run: RunConfig, vocab: Vocab, token_bytes: Tensor | None = None) -> Objective:
    """Model and objective on the meta device: shapes without memory."""
    sizes = run.model.build(vocab.size, run.data.length)
    objective = run.objective
    if not isinstance(objective, Diffusion):
        with torch.device("meta"):
            model = AutoregressiveModel(sizes)
        return AutoregressiveObjective(model, token_bytes=token_bytes)
    with torch.device("meta"):
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
    """A run at step 0. All ranks enter; none ever holds more than its part and one parameter."""
    objective = build_objective(run, vocab, token_bytes)
    if run.train.compile:
        compile_blocks(objective.network)
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
