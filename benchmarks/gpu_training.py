"""The training step of a preset and its parts: a part of `gpu.py`.

Head and loss are compared with the same head and cross-entropy: `F.linear` + `F.cross_entropy`,
and the fused kernel of liger-kernel if that is installed. All of it is forward and backward, in
bf16 autocast unless the preset has none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from gpu_measure import Settings, Waits, Work, count_launches, find_waits, medians
from torch import Tensor, nn

from gidd.common.config.components import Component, component
from gidd.data.batch import Batch
from gidd.diffusion.loss import fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting import DynamicWeighting
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.config import RunConfig
from gidd.training.state import TrainState
from gidd.training.world import World

_WAITS = {
    "hybrid": (component("schedule", "hybrid", p_uniform=0.1), 0),
    "masked": (component("schedule", "masked"), 1),
}
"""Noise, and how often a step may wait: masking waits for the number of masked tokens, of which
alone the head is computed."""


@dataclass(frozen=True)
class Trainer:
    """A run that always trains on the same batch."""

    run: RunConfig
    world: World
    state: TrainState
    batch: Batch

    @classmethod
    def of(
        cls, settings: Settings, world: World, *, compiled: bool, noise: Component | None = None
    ) -> Trainer:
        """Build the preset, with another noise if it is given."""
        run, objective = settings.run, settings.run.objective
        if noise is not None:
            run = replace(run, objective=replace(objective, noise=noise))
        run = replace(run, train=replace(run.train, compile=compiled))
        tokens = torch.randint(settings.vocab.size - 1, (settings.samples, settings.length))
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(len(tokens)))
        state = build_state(run, settings.vocab, world)
        return cls(run, world, state, batch.to(world.device))

    def step(self) -> None:
        """Make one training step; its statistics stay on the device."""
        outcome = loop.gradients(self.run, self.world, self.state, self.batch)
        loop.update(self.run, self.state, outcome)

    def body(self) -> None:
        """Run the network without its head, forward and backward."""
        tokens = self.batch.tokens
        t = torch.full((len(tokens),), 0.5, device=tokens.device)
        with _autocast(self.run, tokens.device):
            hidden = self.state.model.denoiser.hidden(tokens, t)
        hidden.sum().backward()
        self.state.zero_grad()

    def optimise(self) -> None:
        """Clip gradients and update the weights; gradients must exist, and stay."""
        parameters = self.state.module.parameters()
        nn.utils.clip_grad_norm_(parameters, self.run.optim.max_grad_norm)
        self.state.optimizers[0].step()


class HeadProblem:
    """Hidden states, a head and noisy tokens, of the sizes of a training step."""

    def __init__(self, settings: Settings) -> None:
        device, vocab = settings.device, settings.vocab
        shape, width = (settings.samples, settings.length), settings.width
        self._settings, generator = settings, torch.Generator().manual_seed(0)
        dtype = torch.bfloat16 if settings.run.train.autocast else torch.float32
        self.hidden = torch.randn(*shape, width, generator=generator).to(device, dtype)
        self.weight = torch.randn(vocab.size, width, generator=generator).mul_(0.02).to(device)
        self.bias = torch.zeros(vocab.size, device=device)
        self.never = torch.arange(vocab.size, device=device) == vocab.mask_id
        for tensor in (self.hidden, self.weight, self.bias):
            tensor.requires_grad_()
        self.x = torch.randint(vocab.size - 1, shape, generator=generator).to(device)
        self.t = ((torch.arange(shape[0]) + 0.5) / shape[0]).to(device)

    def losses(self) -> dict[str, Work]:
        """Return forward and backward of each loss by name."""
        vocab = self._settings.vocab
        losses: dict[str, Callable[[], Tensor]] = {
            "hybrid": self._gidd(HybridSchedule(vocab, 0.1)),
            "masked": self._gidd(MaskedSchedule(vocab)),
            "cross-entropy": self._cross_entropy,
        }
        if self._settings.device.type == "cuda" and find_spec("liger_kernel") is not None:
            losses["liger"] = self._liger()
        return {name: partial(self._run, loss) for name, loss in losses.items()}

    def _run(self, loss: Callable[[], Tensor]) -> None:
        with _autocast(self._settings.run, self.x.device):
            value = loss()
        value.backward()
        self.hidden.grad = self.weight.grad = self.bias.grad = None

    def _gidd(self, schedule: MixingSchedule) -> Callable[[], Tensor]:
        sample, position = (torch.arange(n, device=self.x.device) for n in self.x.shape)
        z = noise(schedule, self.t, self.x, random_integers(0, Stream.NOISE, 0, sample, position))
        weight = DynamicWeighting(schedule)(self.t, self.x, z) / self.x.numel()

        def loss() -> Tensor:
            bias = self.bias.masked_fill(self.never, -torch.inf)
            states = self.hidden, self.weight, bias
            return fused_loss(schedule, self.t, self.x, z, *states, weight).loss

        return loss

    def _cross_entropy(self) -> Tensor:
        logits = F.linear(self.hidden, self.weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1), self.x.flatten())

    def _liger(self) -> Callable[[], Tensor]:
        module: Any = importlib.import_module("liger_kernel.transformers")
        loss = module.LigerFusedLinearCrossEntropyLoss()
        return lambda: loss(
            self.weight, self.hidden.flatten(0, 1), self.x.flatten(), bias=self.bias
        )


def _autocast(run: RunConfig, device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16, enabled=bool(run.train.autocast))


def training_waits(settings: Settings, world: World) -> dict[str, Waits]:
    """Find the waits of a whole step: forward, backward, clipping and update, not compiled."""
    waits: dict[str, Waits] = {}
    for name, (kind, allowed) in _WAITS.items():
        trainer = Trainer.of(settings, world, compiled=False, noise=kind)
        for _ in range(2):  # compiles kernels, and fills caches
            trainer.step()
        waits[f"training step, {name}"] = find_waits(trainer.step, settings.device, allowed)
    return waits


def head_seconds(settings: Settings) -> dict[str, float]:
    """Return the seconds of head and loss, for each loss."""
    return medians(HeadProblem(settings).losses(), settings)


class StepFigures(NamedTuple):
    """Training steps by mode, eager or compiled, and their parts."""

    seconds: dict[str, float]
    """Of steps, of the network without its head, and of the optimiser."""

    launches: dict[str, int | None]
    peak_bytes: int | None
    """Memory of an eager step; None on a CPU."""


def step_figures(settings: Settings, world: World) -> StepFigures:
    """Measure the training step and its parts."""
    device = settings.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    eager = Trainer.of(settings, world, compiled=False)
    eager.step()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    trainers = {
        name: Trainer.of(settings, world, compiled=True) if compiled else eager
        for name, compiled in settings.modes.items()
    }
    steps = {f"step, {name}": trainer.step for name, trainer in trainers.items()}
    bodies = {f"body, {name}": trainer.body for name, trainer in trainers.items()}
    seconds = medians(steps, settings) | medians(bodies, settings)
    launches = {name: count_launches(trainer.step, device) for name, trainer in trainers.items()}
    loop.gradients(eager.run, world, eager.state, eager.batch)
    seconds |= medians({"optimiser": eager.optimise}, settings)
    return StepFigures(seconds, launches, peak)
