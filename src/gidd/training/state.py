"""The state of a run: everything that a checkpoint saves."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from gidd.errors import ConfigError
from gidd.training.corruption import Corruption
from gidd.training.metrics import StepMetrics
from gidd.training.objective import LossFunction, TrainedModel

_ADAMW = {"exp_avg": "mean.{}", "exp_avg_sq": "square.{}"}
"""Names of the tensors of AdamW in a checkpoint; its counters are the number of steps."""


class TrainStep(NamedTuple):
    """The functions of a training step: noise for a batch, the model's loss, and metrics."""

    model: TrainedModel
    corrupt: Corruption
    objective: LossFunction
    metrics: StepMetrics


@final
@dataclass(kw_only=True)
class TrainState:
    """Weights, optimiser, EMA and progress of a run. Data and noise need no state."""

    model: TrainedModel
    """Its parameters may be sharded over ranks."""
    module: nn.Module
    """What is called: the model itself, or its DDP wrapper."""
    corrupt: Corruption
    objective: LossFunction
    metrics: StepMetrics
    optimizers: tuple[Optimizer, ...]
    """Each with its own parameters."""
    ema: EMA | None = None
    step: int = 0
    """Completed optimiser steps."""
    has_diverged: Tensor | None = None
    """On the device: 1.0 after a step whose loss or gradient norm was not finite; no later step
    updates weights and optimiser. None before the first step."""
    pending: dict[str, float] = field(default_factory=lambda: {})
    """Sums over all ranks since the last report."""
    source: dict[str, str] | None = None
    """Name and SHA-256 of the model whose weights were the initial ones, if any."""

    def add(self, sums: Mapping[str, float]) -> None:
        """Add the sums of one step, in an order that does not depend on interruptions."""
        self.pending = {name: self.pending.get(name, 0.0) + value for name, value in sums.items()}

    @contextmanager
    def ema_weights(self) -> Generator[None]:
        """Swap in the EMA weights, if the run has any, until the block ends."""
        if self.ema is None:
            yield
            return
        with torch.no_grad():
            weights = dict(self.model.named_parameters())
            kept = {name: weight.detach().clone() for name, weight in weights.items()}
            for name, weight in weights.items():
                weight.copy_(self.ema.values[name])
            try:
                yield
            finally:
                for name, weight in weights.items():
                    weight.copy_(kept[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, not copied: filling them restores the run."""
        tensors, saved = dict[str, Tensor](), self._optimizer_entries()
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            entries = saved.get(name, {}).items()  # frozen parameters have none
            tensors |= {key: value for key, value in entries if isinstance(value, Tensor)}
        if self.ema:
            tensors |= {f"ema.{name}": value for name, value in self.ema.values.items()}
        return tensors

    def zero_grad(self) -> None:
        """Free all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _optimizer_entries(self) -> dict[str, dict[str, Any]]:
        """Return the state of optimizers, not copied, by parameter and by name in a checkpoint."""
        adamw = {p for opt in self.optimizers if isinstance(opt, AdamW) for p in opt.state}
        entries: dict[str, dict[str, Any]] = {}
        state = self._optimizer_state()["state"]
        for name, parameter in self.model.named_parameters():
            entries[name] = entry = {}
            for key, value in state.get(name, {}).items():
                if parameter in adamw:
                    entry |= {_ADAMW[key].format(name): value} if key in _ADAMW else {}
                elif isinstance(value, Tensor | int | float):
                    entry[f"optim.{name}.{key}"] = value
                else:
                    raise ConfigError(
                        f"optimizer must have a state of tensors and numbers, got {key} of type "
                        f"{type(value).__name__}. It cannot be saved."
                    )
        return entries

    def _optimizer_state(self) -> dict[str, dict[str, dict[str, Any]]]:
        return cast(Any, get_optimizer_state_dict(self.model, self.optimizers))

    def record(self) -> dict[str, Any]:
        """Return the state that is not in tensors, as JSON-serialisable values."""
        source = {} if self.source is None else {"init_from": self.source}
        entries = self._optimizer_entries().values()
        numbers = {k: v for entry in entries for k, v in entry.items() if not isinstance(v, Tensor)}
        others = {"optimizer": numbers} if numbers else {}
        # of parameters that were frozen in some steps
        counts = {name: count for name, count in self._adamw_steps().items() if count != self.step}
        others |= {"adamw_steps": counts} if counts else {}
        return {"step": self.step, "pending": self.pending} | others | source

    def _adamw_steps(self) -> dict[str, int]:
        """Return the number of updates of each parameter of AdamW."""
        moments = {
            p: moment
            for optimizer in self.optimizers
            if isinstance(optimizer, AdamW)
            for p, moment in optimizer.state.items()
        }
        named = [(n, moments[p]["step"]) for n, p in self.model.named_parameters() if p in moments]
        if not named:
            return {}
        names, steps = zip(*named, strict=True)
        return dict(zip(names, map(int, torch.stack(steps).tolist()), strict=True))

    def restore(self, record: Mapping[str, Any]) -> None:
        """Restore the state from a `record`, after the tensors have been filled."""
        self.step, self.pending = int(record["step"]), dict(record["pending"])
        self.source, self.has_diverged = record.get("init_from"), None
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer in self.optimizers:
            if isinstance(optimizer, AdamW):
                for parameter, moments in optimizer.state.items():
                    count = record.get("adamw_steps", {}).get(
                        names[cast(Any, parameter)], self.step
                    )
                    moments["step"].fill_(count)
        if numbers := record.get("optimizer"):
            state = self._optimizer_state()
            for name, entries in state["state"].items():
                entries |= {k: numbers.get(f"optim.{name}.{k}", v) for k, v in entries.items()}
            set_optimizer_state_dict(self.model, self.optimizers, cast(Any, state))
        if self.ema:
            self.ema.updates = self.step


@final
class EMA:
    """Exponential moving average (EMA) of the weights, sharded as they are.

    The decay of update n is at most (1 + n) / (10 + n), so that the random initial weights do not
    stay in the average.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.values = {name: parameter.detach().clone() for name, parameter in parameters}

    @torch.no_grad()
    def update(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Update the average: value += (1 - decay) (weight - value)."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        pairs = [(_local(self.values[name]), _local(weight)) for name, weight in parameters]
        values, weights = zip(*pairs, strict=True)
        get_ema_multi_avg_fn(decay)(values, weights, self.updates)  # one kernel for all
        self.updates += 1


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
