"""Speed of a run: tokens per second and model FLOPs utilisation (MFU)."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

import torch
from torch import nn

from gidd.models import DiTConfig


def training_flops_per_token(network: nn.Module, length: int) -> float:
    """Return the FLOPs of a token's forward (2 per weight) and backward pass (4 per weight).

    To the weights of blocks and head, attention adds two products with `length` tokens in every
    layer. The modulation of a DiT is computed once per sample. Recomputed activations are not
    counted, as usual for MFU. Of other networks only weights without embeddings are counted.
    """
    model = getattr(network, "config", None)
    if isinstance(model, DiTConfig):
        return transformer_flops_per_token(model, length)
    tables = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    head = getattr(network, "head", None)
    head_parameters = list(head.parameters()) if isinstance(head, nn.Module) else []
    looked_up = set(map(id, tables)) - set(map(id, head_parameters))
    return 6.0 * sum(w.numel() for w in network.parameters() if id(w) not in looked_up)


def transformer_flops_per_token(model: DiTConfig, length: int) -> float:
    """Return the training FLOPs of a token of a DiT."""
    weights = model.num_block_parameters + model.width * model.vocab_size
    modulation = model.width * (model.time_width + 1)  # a shift, a scale or a gate
    blocks, last = 6 * model.num_layers * modulation, 2 * modulation
    weights += (blocks + last) / length - blocks
    return 6 * weights + 12 * model.num_layers * model.width * length


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOPs per second of a large square matrix product, the best of five: 100% MFU."""
    size = 1024 if device.type == "cpu" else 8192  # on a GPU, much longer than the kernel launch
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds: list[float] = []
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        torch.matmul(a, b)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@final
class Speed:
    """Measures training time since the last report, without evaluations and checkpoints."""

    def __init__(self, *, tokens_per_step: int, flops_per_token: float, peak: float | None) -> None:
        """`peak`: FLOPs per second of all ranks together; None if unknown: there is no MFU then."""
        self._tokens_per_step = tokens_per_step
        self._steps_at_peak = None if peak is None else peak / (flops_per_token * tokens_per_step)
        self._start = self._since = time.perf_counter()
        self._paused = 0.0
        self._steps = self._steps_ever = 0

    def step(self) -> None:
        """Count a completed step."""
        self._steps += 1
        self._steps_ever += 1

    @contextmanager
    def paused(self) -> Generator[None]:
        """Exclude the time in this block from the training time."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    def wall(self, steps_left: int) -> dict[str, float]:
        """Return speed since the last call; the time left uses the mean over the whole run."""
        now = time.perf_counter()
        busy = max(now - self._since - self._paused, 1e-9)
        rate = self._steps / busy
        total = max(now - self._start, 1e-9)  # with evaluations and checkpoints
        self._since, self._paused, self._steps = now, 0.0, 0
        mfu = {} if self._steps_at_peak is None else {"mfu": rate / self._steps_at_peak}
        return {
            "seconds": now - self._start,
            "tokens_per_second": rate * self._tokens_per_step,
            "seconds_left": steps_left * total / max(self._steps_ever, 1),
        } | mfu
