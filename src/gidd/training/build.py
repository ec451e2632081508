"""Build the training state of a configuration, on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ConfigError
from gidd.models import Backbone, Denoiser
from gidd.models.lora import add_lora, reset_lora
from gidd.models.networks import Initializer, blocks_of, initialize, require_no_buffers
from gidd.training.config import RunConfig
from gidd.training.corruption import Corruption
from gidd.training.metrics import StepMetrics
from gidd.training.objective import LossFunction, TrainedModel
from gidd.training.optim import build_optimizers
from gidd.training.parallel import distribute, wrap_ddp
from gidd.training.state import EMA, TrainState, TrainStep
from gidd.training.world import World
from gidd.vocab import Vocab


@final
@dataclass(frozen=True, kw_only=True)
class GivenComponents:
    """Objects that a run uses in place of those that its configuration describes."""

    network: nn.Module | None = None
    """With its initial weights."""
    schedule: MixingSchedule | None = None
    weighting: Weighting | None = None


_NONE = GivenComponents()


def build_step(
    run: RunConfig,
    vocab: Vocab,
    token_bytes: Tensor | None = None,
    components: GivenComponents = _NONE,
) -> TrainStep:
    """Build the model, noise and metrics of a training step; parameters are on the meta device."""
    objective = run.objective
    with torch.device("meta"):
        network = components.network or run.network_config(vocab.size).build()
        require_no_buffers(network)
        if run.lora.rank:
            with next(network.parameters()).device:  # a given network has its weights
                add_lora(network, run.lora)
    if run.data.padding == "ignored" and not getattr(network, "accepts_padding", False):
        raise ConfigError(
            "data.padding must be learned for a network that does not accept padding, got "
            "ignored. See accepts_padding in docs/extending.md."
        )
    if run.data.packing and not getattr(network, "accepts_segments", False):
        raise ConfigError(
            f"data.packing must be false for this {type(network).__name__}, got true: it cannot "
            "keep the documents of a row apart. Use a dit without mixing_width, or see "
            "accepts_segments in docs/extending.md."
        )
    if objective.attention_warmup and not hasattr(network, "visible_future"):
        raise ConfigError(
            "objective.attention_warmup must be 0 for a network that is not a causal model of "
            f"transformers, got {objective.attention_warmup}. Use --init-from a causal model."
        )
    if objective.block_lengths and not getattr(network, "accepts_context", False):
        raise ConfigError(
            f"objective.block_lengths must be empty for this {type(network).__name__}, got "
            f"{objective.block_lengths}: it does not read sequences in blocks. Use a dit, or a "
            "causal model without checkpoint_activations."
        )
    if objective.block_lengths and objective.attention_warmup:
        raise ConfigError(
            "objective.attention_warmup must be 0 with objective.block_lengths, got "
            f"{objective.attention_warmup}: a block reads no tokens after it."
        )
    schedule = components.schedule or objective.noise.build(vocab=vocab)
    if schedule.vocab != vocab:
        raise ConfigError(f"schedule.vocab must be tokenizer.vocab, {vocab}, got {schedule.vocab}.")
    loss: LossFunction = objective.loss.build()
    if (check := getattr(loss, "check", None)) is not None:
        check(schedule)
    corrupt = Corruption(
        schedule=schedule,
        weighting=components.weighting or objective.weighting.build(schedule=schedule),
        seed=run.train.seed,
        eps=objective.eps,
        compiled=bool(run.train.compile),
        p_uniform_warmup=objective.p_uniform_warmup,
        time_power=objective.time_power,
        block_lengths=objective.block_lengths,
        hides_padding=run.data.padding == "ignored",
    )
    denoiser = Denoiser(cast(Backbone, network), vocab)
    model = TrainedModel(denoiser, objective.attention_warmup)
    return TrainStep(model, corrupt, loss, StepMetrics(token_bytes))


def is_compiled(setting: bool | None, device: torch.device) -> bool:
    """Return `train.compile`, or its default on a device."""
    if setting is not None:
        return setting
    return device.type == "cuda" and find_spec("triton") is not None


def with_precision(run: RunConfig, has_bf16: bool) -> RunConfig:
    """Return the run with `train.autocast` set: bfloat16 by default if the device has it."""
    if run.train.autocast is not None:
        return run
    return replace(run, train=replace(run.train, autocast=has_bf16))


def build_state(
    run: RunConfig,
    vocab: Vocab,
    world: World,
    token_bytes: Tensor | None = None,
    components: GivenComponents = _NONE,
) -> TrainState:
    """Build the state at step 0. All ranks enter.

    A rank never holds more than its shard of the state and one full parameter, if the network can
    fill its own parameters.
    """
    compiled = is_compiled(run.train.compile, world.device)
    compiled_run = replace(run, train=replace(run.train, compile=compiled))
    step = build_step(compiled_run, vocab, token_bytes, components)
    model, network = step.model, step.model.network
    blocks = blocks_of(network)
    if compiled:
        for block in blocks:
            # one short compilation that all blocks share; blocks that cannot be compiled as one
            # graph are an error only if the setting was given
            block.compile(fullgraph=run.train.compile is True)
    precision = torch.bfloat16 if run.train.autocast else torch.float32
    if components.network is not None and world.size > 1:
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.detach(), 0)  # ranks may have built other weights
    distribute(run.parallel, model, blocks, world, precision)
    if components.network is None:
        initialize(network, run.train.seed, lambda: run.network_config(vocab.size).build())
    if run.lora.rank:
        reset_lora(network, Initializer(run.train.seed))
    decay = run.train.ema_decay
    return TrainState(
        **step._asdict(),
        module=wrap_ddp(run.parallel, model, world),
        optimizers=build_optimizers(run.optimizer, network, run.optim),
        ema=None if decay is None else EMA(model.named_parameters(), decay),
    )
