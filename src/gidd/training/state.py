"""Everything of a run that must survive."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from gidd.training.objective import Objective


@final
@dataclass(kw_only=True)
class TrainState:
    """Weights, optimiser, their average, and how far the run is. Data and noise need no state."""

    objective: Objective
    """Holds the model; its parameters may be divided among ranks."""

    module: nn.Module
    """The objective as it is called: itself, or wrapped to add up gradients over ranks."""

    optimizer: torch.optim.AdamW
    ema: EMA | None = None
    step: int = 0
    """Optimiser steps done."""

    pending: dict[str, float] = field(default_factory=lambda: {})
    """Sums over all ranks since the last report."""

    def add(self, sums: Mapping[str, float]) -> None:
        """Count a step's sums towards the next report, one step after the other.

        The order of additions is then the same whenever the run was interrupted.
        """
        self.pending = {name: self.pending.get(name, 0.0) + value for name, value in sums.items()}

    @contextmanager
    def ema_weights(self) -> Generator[None]:
        """Put the average in the place of the weights, if there is one, and then back."""
        if self.ema is None:
            yield
            return
        with torch.no_grad():
            weights = dict(self.objective.named_parameters())
            kept = {name: weight.detach().clone() for name, weight in weights.items()}
            for name, weight in weights.items():
                weight.copy_(self.ema.values[name])
            try:
                yield
            finally:
                for name, weight in weights.items():
                    weight.copy_(kept[name])

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, in place: what is read into them is read into the run."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.objective.named_parameters():
            moments = self.optimizer.state[parameter]
            tensors[f"model.{name}"] = parameter.detach()
            tensors[f"mean.{name}"] = moments["exp_avg"]
            tensors[f"square.{name}"] = moments["exp_avg_sq"]
        if self.ema:
            tensors |= {f"ema.{name}": value for name, value in self.ema.values.items()}
        return tensors

    def record(self) -> dict[str, Any]:
        """All else, as JSON."""
        return {"step": self.step, "pending": self.pending}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over a record, after the tensors have been read."""
        self.step, self.pending = int(record["step"]), dict(record["pending"])
        for moments in self.optimizer.state.values():
            moments["step"].fill_(self.step)
        if self.ema:
            self.ema.updates = self.step


@final
class EMA:
    """An exponential moving average of the weights, as they are divided among ranks.

    It forgets faster at first, so that the random weights it begins with do not stay in it: the
    decay of update n is at most (1 + n) / (10 + n).
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self.decay = decay
        self.updates = 0
        """Done so far: one for every step of the run."""

        self.values = {name: parameter.detach().clone() for name, parameter in parameters}

    @torch.no_grad()
    def update(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """value += (1 - decay) (weight - value)."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in parameters:
            self.values[name].lerp_(parameter.detach(), 1 - decay)
        self.updates += 1
